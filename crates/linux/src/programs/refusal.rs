//! Messages of libbpf and the kernel's verifier when programs cannot be loaded.

use crate::cpu::SignalsBlocked;
use libbpf_rs::{PrintLevel, set_print};
use std::cell::RefCell;
use std::sync::Once;

/// Lines of the verifier's log that are shown: its last ones say what it refuses, and what it knew there.
const LINES_MAX: usize = 16;

thread_local! {
    /// The messages of libbpf since [`listen`] began; `None` without [`listen`].
    static HEARD: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The result of `act`, and the messages of libbpf meanwhile on this thread. No signal reaches the thread until then: the
/// verifier gives up at one (EAGAIN), and libbpf tries five times.
pub(super) fn listen<T>(act: impl FnOnce() -> T) -> (T, String) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Warn, hear)));
    });
    HEARD.set(Some(String::new()));
    let _blocked = SignalsBlocked::new();
    let result = act();
    (result, HEARD.take().unwrap_or_default())
}

fn hear(_: PrintLevel, message: String) {
    let unheard = HEARD.with_borrow_mut(|heard| match heard {
        Some(heard) => {
            heard.push_str(&message);
            false
        }
        None => true,
    });
    if unheard {
        eprint!("{message}");
    }
}

/// Why programs could not be loaded, from what libbpf said: the end of the verifier's log, if there is one, else what
/// is needed and libbpf's own words.
pub(super) fn reason(heard: &str, release: &str, error: &str) -> String {
    let Some((before, log)) = heard.split_once("-- BEGIN PROG LOAD LOG --\n") else {
        let words: Vec<&str> = heard.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        return format!(
            "cannot load the BPF programs ({error}): CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, memory for the rules, and Linux 6.1 or \
             later are needed (this is Linux {release}); libbpf says: {}",
            words.join("; ")
        );
    };
    let log = log.split("-- END PROG LOAD LOG --").next().unwrap_or(log).trim_end();
    let program = before.rsplit("prog '").next().and_then(|rest| rest.split('\'').next()).unwrap_or("?");
    let lines: Vec<&str> = log.lines().collect();
    let end = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n    ");
    format!(
        "cannot load the BPF programs: the verifier of this kernel, Linux {release}, refuses {program} ({error}). If \
         this is 6.1 or later, it is a defect of Hairpin: please report it with the end of the verifier's log:\n    {end}"
    )
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn a_refusal_shows_the_end_of_the_verifiers_log() {
        let trace: String = (0..1000).map(|line| format!("{line}: (bf) r1 = r0\n")).collect();
        let heard = format!(
            "libbpf: prog 'spliced': BPF program load failed: Permission denied\nlibbpf: prog 'hairpin_ingress': -- BEGIN \
             PROG LOAD LOG --\n{trace}R4 invalid zero-sized read\nprocessed 1000 insns\n-- END PROG LOAD LOG --\nlibbpf: \
             prog 'hairpin_ingress': failed to load: -13\n"
        );
        let reason = reason(&heard, "6.1.0-56-amd64", "Permission denied");
        assert!(reason.contains("Linux 6.1.0-56-amd64, refuses hairpin_ingress"), "{reason}");
        assert!(reason.ends_with("R4 invalid zero-sized read\n    processed 1000 insns"), "{reason}");
        assert!(reason.lines().count() < 20, "{reason}");
    }

    #[test]
    fn without_a_log_libbpfs_words_are_shown() {
        let reason = reason("libbpf: map 'rules_v4': failed to create: -E2BIG\n", "6.1.0", "Argument list too long");
        assert!(reason.contains("CAP_BPF") && reason.contains("map 'rules_v4': failed to create"), "{reason}");
    }
}
