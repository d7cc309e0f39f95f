//! The file of shared keys: what it may be, and what is said of what it is not.

use super::{good, said, with};
use hairpin::config;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

const A: &str = "000102030405060708090a0b0c0d0e0f";
const B: &str = "FFEEDDCCBBAA99887766554433221100";

/// A file that is removed in the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str, mode: u32) -> File {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hairpin-keys-{}-{number}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        File(path)
    }

    fn field(&self) -> String {
        with(&format!("keys_file = \"{}\"", self.0.display()))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The message about the file, without its path.
fn wrong(text: &str, mode: u32) -> String {
    let file = File::new("wrong", text, mode);
    let problems = said(&file.field());
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    let start = format!("t.toml:2:13: error: `keys_file` \"{}\": ", file.0.display());
    let rest = problem.strip_prefix(&start).unwrap_or_else(|| panic!("{problem}"));
    for secret in text.lines().filter(|line| line.len() > 8) {
        assert!(!problem.contains(secret), "{problem}");
    }
    rest.replace(&file.0.display().to_string(), "FILE")
}

#[test]
fn keys_are_read_in_their_order() {
    let text = format!("# the first is in use\n{A}\n\n  {B}\r\n# the end");
    let (owner_reads, both) = (File::new("400", &text, 0o400), File::new("600", &format!("{B}\n{A}"), 0o600));
    let [one, other] = [&owner_reads, &both].map(|file| good(&file.field()));
    let [keys, turned] = [&one, &other].map(|config| config.snapshot.keys.all());
    assert_eq!(keys.len(), 2);
    assert_eq!([keys[0], keys[1]], [turned[1], turned[0]]);
    assert_eq!(one.settings.keys_file.as_ref(), Some(&owner_reads.0));
    let shown = format!("{one:?}").to_lowercase();
    assert!(!shown.contains("06050403") && !shown.contains("506097522914230528"), "as bytes or as a number");
}

#[test]
fn without_a_file_there_are_no_shared_keys() {
    let config = good(super::GOOD);
    assert!(config.snapshot.keys.all().is_empty() && config.settings.keys_file.is_none());
}

#[test]
fn what_is_no_key_is_named_by_its_line() {
    let form = "; write one key a line, 32 hexadecimal digits (`openssl rand -hex 16` prints one)";
    assert_eq!(wrong("# none\n\n", 0o600), format!("it has no key{form}"));
    assert_eq!(wrong(&format!("{A}\n{}\n", &B[1..]), 0o600), format!("line 2 has 31 hexadecimal digits{form}"));
    assert_eq!(wrong(&format!("{A}{B}\n"), 0o600), format!("line 1 has 64 hexadecimal digits{form}"));
    let other = format!("line 1 has something other than hexadecimal digits{form}");
    assert_eq!(wrong(&A.replace('f', "g"), 0o600), other);
    assert_eq!(wrong("key = \"000102030405060708090a0b0c0d0e0f\"", 0o600), other);
    assert_eq!(wrong(&format!("#\n{A}\n{B}\n{A}\n"), 0o600), "line 4 has the key of line 2; leave one out");
    let many: String = (0..5).map(|key| format!("{key:032x}\n")).collect();
    assert_eq!(
        wrong(&many, 0o600),
        "it has 5 keys; keep 4 at most: the one in use first, those that are still accepted behind it"
    );
    assert_eq!(wrong(&"#".repeat(20_000), 0o600), format!("it has more than 16384 bytes{form}"));
}

#[test]
fn a_file_that_others_can_read_is_refused() {
    for mode in [0o644, 0o640, 0o620, 0o604, 0o602] {
        let expected = format!(
            "its mode is {mode:04o}: others than its owner can read or change the keys; chmod 600 FILE; if others may \
             have read the keys, write new ones"
        );
        assert_eq!(wrong(&format!("{A}\n"), mode), expected);
    }
}

#[test]
fn a_file_of_another_user_is_refused() {
    let file = File::new("other", A, 0o600);
    if std::os::unix::fs::chown(&file.0, Some(12_345), None).is_err() {
        return; // Only root can make one.
    }
    let problems = said(&file.field()).concat();
    assert!(problems.contains("it belongs to user 12345, who can read and change the keys; give it to"), "{problems}");
}

#[test]
fn what_is_no_file_is_refused() {
    let said = |path: &str| said(&with(&format!("keys_file = \"{path}\""))).concat();
    assert!(said("/nowhere/keys").contains("`keys_file` \"/nowhere/keys\": cannot read it: No such file"));
    assert!(said("/dev/null").contains("it is not a regular file"));
    assert!(said("keys").ends_with("`keys_file` is \"keys\", not an absolute path; start it with `/`"));
}

/// A reload tells what has changed of it, although the configuration is the same text.
#[test]
fn other_keys_are_a_change_that_tells_none_of_them() {
    let file = File::new("change", A, 0o600);
    let before = good(&file.field());
    fs::write(&file.0, format!("{A}\n{B}\n")).unwrap();
    let after = config::parse("t.toml", &file.field()).unwrap();
    let [none, some] = [hairpin::diff::changes(&before, &before), hairpin::diff::changes(&before, &after)];
    assert!(none.changes.is_empty() && some.later.is_empty());
    let [change] = &some.changes[..] else { panic!("{some:?}") };
    let (path, [a, b]) = (file.0.display(), [0, 1].map(|key| after.snapshot.keys.all()[key].fingerprint()));
    assert_eq!(*change, format!("keys_file: {path} ({a:08x}) -> {path} ({a:08x}, {b:08x})"));
}
