use super::*;
use hairpin_core::l7::head::{self, Bounds, ParseStatus};

const BOUNDS: Bounds = Bounds { bytes_max: 8192, fields_max: 64, target_bytes_max: 4096 };

/// A line of a file, at the lowest cost.
fn line(user: &str, password: &str) -> String {
    let hash = bcrypt::hash_with_salt(password, 4, *b"0123456789abcdef").unwrap();
    format!("{user}:{}\n", hash.format_for_version(bcrypt::Version::TwoY))
}

fn refused(file: &str) -> (String, String) {
    BasicAuth::read("shop", file.as_bytes()).unwrap_err()
}

/// The credentials of a request with these fields.
fn given(fields: &str) -> Option<Vec<u8>> {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let Ok(ParseStatus::Complete(request)) = head::request(head.as_bytes(), &BOUNDS) else { panic!("{head}") };
    Credentials::of(&request).map(|credentials| credentials.0)
}

fn pending(guard: &Rc<BasicGuard>, credentials: &[u8]) -> PendingCheck {
    PendingCheck { guard: Rc::clone(guard), credentials: Credentials(credentials.into()) }
}

fn run<T>(body: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body)
}

#[test]
fn file_has_a_user_a_line_and_comments() {
    let file = format!("# staff\n{}\r\n\n{}", line("ann", "open: sesame").trim_end(), line("bé", ""));
    let auth = BasicAuth::read("shop", file.as_bytes()).unwrap();
    assert_eq!((auth.users(), &*auth.challenge), (2, "Basic realm=\"shop\", charset=\"UTF-8\""));
    for (credentials, is_right) in [
        ("ann:open: sesame", true),
        ("bé:", true),
        ("ann:open: sesam", false),
        ("ann:", false),
        ("bé:open: sesame", false),
        ("eve:open: sesame", false),
        (":open: sesame", false),
    ] {
        assert_eq!(auth.is_right(&Credentials(credentials.into())), is_right, "{credentials}");
    }
    assert_eq!(format!("{auth:?}"), "BasicAuth { users: 2, .. }");
}

#[test]
fn unknown_users_are_compared_with_the_most_costly_hash() {
    let cheap = line("ann", "a");
    let costly = cheap.replace("ann:$2y$04$", "bob:$2y$06$");
    let auth = BasicAuth::read("shop", format!("{cheap}{costly}").as_bytes()).unwrap();
    assert!(auth.decoy.starts_with("$2y$06$"));
}

#[test]
fn other_hashes_are_refused_with_their_line() {
    const OTHER: &str = "has a password that is not hashed with bcrypt ($2y$ or $2b$)";
    for hash in ["$apr1$12345678$abc", "{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=", "secret", "$2a$10$abc", "$5$a$b"] {
        let (what, remedy) = refused(&format!("{}eve:{hash}\n", line("ann", "a")));
        assert_eq!(what, format!("line 2 {OTHER}"));
        assert_eq!(remedy, "hash the password with bcrypt: htpasswd -B FILE USER");
    }
    let whole = line("ann", "a");
    assert_eq!(refused(&whole[..40]).0, "line 1 has a hash that is not whole");
    for cost in ["$2y$03$", "$2y$13$"] {
        assert_eq!(refused(&whole.replace("$2y$04$", cost)).0, "line 1 has a hash whose cost is not from 4 to 12");
    }
    assert_eq!(refused("ann\n").0, "line 1 has not the form USER:HASH");
    assert_eq!(refused(":x\n").0, "line 1 has not the form USER:HASH");
    assert_eq!(refused(&format!("{whole}{whole}")).0, "line 2 has a user whom a line before it has, too");
    assert_eq!(refused("# none\n").0, "it has no user, so that no request would pass");
}

#[test]
fn credentials_are_those_of_one_field() {
    let right = Some(b"ann:a:b".to_vec());
    let encoded = STANDARD.encode("ann:a:b");
    assert_eq!(given(&format!("Authorization: Basic {encoded}\r\n")), right);
    assert_eq!(given(&format!("authorization: bAsIc  {encoded}\r\n")), right);
    for fields in [
        String::new(),
        format!("Authorization: Basic{encoded}\r\n"),
        format!("Authorization: Bearer {encoded}\r\n"),
        format!("Authorization: Basic {encoded}\r\nAuthorization: Basic {encoded}\r\n"),
        "Authorization: Basic %%%\r\n".to_string(),
        "Authorization: Basic\r\n".to_string(),
        "Authorization:\r\n".to_string(),
        format!("Authorization: Basic {}\r\n", STANDARD.encode("ann")),
    ] {
        assert_eq!(given(&fields), None, "{fields}");
    }
}

#[test]
fn right_credentials_are_remembered_and_wrong_ones_are_not() {
    let auth = Arc::new(BasicAuth::read("shop", line("ann", "a").as_bytes()).unwrap());
    let guard = Rc::new(BasicGuard::new(&auth));
    let checks = CredentialChecks::default();
    let wrong = Err((401, Refused::Unauthorized));
    assert_eq!(run(checks.check(pending(&guard, b"ann:b"))), wrong);
    assert!(!guard.remembered.has(&Credentials(b"ann:b".into())));
    assert_eq!(run(checks.check(pending(&guard, b"ann:a"))), Ok(()));
    assert!(guard.remembered.has(&Credentials(b"ann:a".into())));
    let anew = Rc::new(BasicGuard::new(&auth));
    assert!(!anew.remembered.has(&Credentials(b"ann:a".into())));
}

#[test]
fn remembered_credentials_are_bounded() {
    let remembered = Remembered::new();
    let credentials = |number: usize| Credentials(format!("u:{number}").into());
    (0..=REMEMBERED_MAX).for_each(|number| remembered.add(&credentials(number)));
    assert!(!remembered.has(&credentials(0)) && remembered.has(&credentials(1)));
    assert_eq!(remembered.tags.borrow().0.len(), REMEMBERED_MAX);
}

#[test]
fn requests_that_wait_are_bounded() {
    let auth = Arc::new(BasicAuth::read("shop", line("ann", "a").as_bytes()).unwrap());
    let guard = Rc::new(BasicGuard::new(&auth));
    let checks = CredentialChecks::default();
    checks.waiting.set(CHECKS_MAX);
    assert_eq!(run(checks.check(pending(&guard, b"ann:a"))), Err((503, Refused::AuthenticationBusy)));
    checks.waiting.set(CHECKS_MAX - 1);
    assert_eq!(run(checks.check(pending(&guard, b"ann:a"))), Ok(()));
    assert_eq!(checks.waiting.get(), CHECKS_MAX - 1);
}
