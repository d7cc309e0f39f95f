//! The command line as users meet it: the built binary, what it prints and how it exits.

use hairpin::control::{
    BackendAction, BackendChange, Changes, ConnectionView, ControlAnswer, ControlRequest, OffloadView, Page, Query,
    serve,
};
use hairpin::status::{BackendStatus, ServiceStatus, Status};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn hairpin(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hairpin")).args(arguments).output().expect("the binary runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hairpin-cli-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn validate_accepts_the_examples() {
    for (name, counts) in [
        ("minimal", "1 service, 2 backends"),
        ("full", "6 services, 11 backends"),
        ("http", "4 services, 6 groups, 14 backends"),
    ] {
        let path = root().join(format!("examples/{name}.toml"));
        let output = hairpin(&["validate", "-c", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", err(&output));
        // What backends of direct server return need comes behind it.
        assert!(out(&output).starts_with(&format!("{}: right: {counts}\n", path.display())), "{}", out(&output));
    }
}

#[test]
fn validate_reports_every_mistake_and_fails() {
    let file = Scratch::new("bad", "interfces = [\"eth0\"]\n[[service]]\nlisten = \"192.0.2.1:80\"\n");
    let output = hairpin(&["validate", "-c", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(out(&output), "");
    let path = file.path();
    assert_eq!(
        err(&output),
        format!(
            "{path}:1:1: error: unknown field `interfces` in the top level; did you mean `interfaces`?\n\
             {path}:1:1: error: `interfaces` is missing in the top level; add interfaces = [\"eth0\", \"eth1\"]\n\
             {path}:2:1: error: the service has no backend; add backends = [\"10.0.2.11:8080\"] or a \
             [[service.backend]]\n\
             {path}:3:10: error: `listen` \"192.0.2.1:80\" names no protocol; write \"192.0.2.1:80/tcp\", or with \
             udp, http, https or tls\n"
        )
    );
}

#[test]
fn run_refuses_a_bad_file_and_interfaces_that_are_not_there() {
    let file = Scratch::new("run-bad", "interfaces = []\n");
    let output = hairpin(&["run", "-c", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("`interfaces` names none"), "{}", err(&output));

    let text =
        "interfaces = [\"surely-absent\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:80\"]\n";
    let file = Scratch::new("run-absent", text);
    let output = hairpin(&["run", "-c", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    let said = err(&output);
    let unprivileged = said.contains("this process lacks CAP_");
    assert!(unprivileged || said.contains("there is no interface surely-absent; "), "{said}");
}

#[test]
fn commands_say_that_no_instance_runs() {
    for line in ["status", "stop", "reload", "connections", "offload", "upgrade", "backend reset web web-1"] {
        let words = line.split(' ').chain(["--socket", "/nonexistent/x.sock"]);
        let output = hairpin(&words.collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(1));
        assert!(err(&output).starts_with("no instance answers at /nonexistent/x.sock; "), "{}", err(&output));
    }
}

#[test]
fn validate_live_reads_certificates() {
    let text = "interfaces = [\"eth0\"]\n[[service]]\nname = \"shop\"\nlisten = \"192.0.2.1:443/https\"\nbackends = \
                [\"10.0.0.1:80\"]\nhttps.certificates = \"/nowhere/shop.pem\"\n";
    let file = Scratch::new("certificates", text);
    // Without --live other machines' files can be checked.
    assert!(hairpin(&["validate", "-c", file.path()]).status.success());
    let output = hairpin(&["validate", "--live", "-c", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    let said = out(&output) + &err(&output);
    let line = said.lines().find(|line| line.starts_with("error: certificates: service shop: "));
    assert!(line.is_some_and(|line| line.contains("/nowhere/shop.pem")), "{said}");
}

#[test]
fn config_prints_a_file_that_validates() {
    let output = hairpin(&["config"]);
    let file = Scratch::new("template", &out(&output));
    let output = hairpin(&["validate", "-c", file.path()]);
    assert!(output.status.success(), "{}", err(&output));
}

#[test]
fn every_command_has_a_manual_page() {
    let output = hairpin(&["man"]);
    assert!(output.status.success());
    let page = out(&output);
    for command in ["run", "validate", "status", "stop", "config", "man", "reload", "connections", "top", "capture"] {
        assert!(page.contains(&format!("hairpin\\-{command}(1)")), "{command}");
    }
    let directory = std::env::temp_dir().join(format!("hairpin-man-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let output = hairpin(&["man", "--directory", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{}", err(&output));
    for command in ["", "-run", "-status", "-backend-drain"] {
        let path = directory.join(format!("hairpin{command}.1"));
        assert!(std::fs::read_to_string(&path).is_ok_and(|page| page.contains(".SH NAME")), "{}", path.display());
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn lab_names_the_program_that_took_its_place() {
    for words in [&["lab"][..], &["lab", "run", "--help"]] {
        let output = hairpin(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let told = format!("run `hairpin-{}`\n", words.join(" "));
        assert!(err(&output).ends_with(&told) && err(&output).lines().count() == 1, "{}", err(&output));
    }
}

#[test]
fn wrong_use_exits_with_2_and_shows_the_usage() {
    for arguments in [&["--wrong"][..], &["staus"], &["status", "-o", "xml"], &[]] {
        let output = hairpin(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(err(&output).contains("Usage:") || err(&output).contains("--help"), "{}", err(&output));
    }
}

#[test]
fn version_is_told() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(out(&hairpin(&["-V"])), format!("hairpin {version}\n"));
    let features = if cfg!(feature = "dpdk") { "dpdk" } else { "none" };
    let long = out(&hairpin(&["--version"]));
    assert!(long.starts_with(&format!("hairpin {version}\nfeatures: {features}")), "{long}");
    assert!(long.lines().nth(2).is_some_and(|line| line.starts_with("commit: ")), "{long}");
}

/// A fake instance that answers.
struct Instance {
    directory: PathBuf,
    asked: Arc<Mutex<Vec<ControlRequest>>>,
}

impl Instance {
    fn new(name: &str, answer: impl Fn(&ControlRequest) -> ControlAnswer + Clone + Send + 'static) -> Instance {
        let directory = std::env::temp_dir().join(format!("hairpin-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let handle = move |request| {
            let answer = answer(&request);
            noted.lock().unwrap().push(request);
            answer
        };
        serve(&directory.join("s"), handle).unwrap();
        Instance { directory, asked }
    }

    /// Runs a command against it.
    fn hairpin(&self, line: &str) -> Output {
        let socket = self.directory.join("s");
        let words: Vec<_> = line.split(' ').chain(["--socket", socket.to_str().unwrap()]).collect();
        hairpin(&words)
    }

    /// The requests since the last call.
    fn asked(&self) -> Vec<ControlRequest> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The output and the exit status of a command.
fn said(output: &Output) -> (Option<i32>, String, String) {
    (output.status.code(), out(output), err(output))
}

#[test]
fn reload_tells_what_changed_or_why_not() {
    let changes = Changes {
        changes: vec!["service web: backend 10.0.2.13:8080 added".into()],
        later: vec!["workers: 2 -> 4".into()],
        warnings: Vec::new(),
    };
    let instance = Instance::new("reload", move |_| ControlAnswer::Changes(changes.clone()));
    let text =
        "service web: backend 10.0.2.13:8080 added\nonly after a restart or `hairpin upgrade`:\n  workers: 2 -> 4\n";
    assert_eq!(said(&instance.hairpin("reload")), (Some(0), text.into(), String::new()));
    let json = out(&instance.hairpin("reload -o json"));
    assert!(json.starts_with("{\"schema_version\":1,\"changes\":[\"service web") && json.ends_with("}\n"), "{json}");
    assert_eq!(
        instance.asked(),
        [ControlRequest::Reload { file: None, discard: false }, ControlRequest::Reload { file: None, discard: false }]
    );

    let refusing = Instance::new("refusing", |_| ControlAnswer::Error("x.toml:1:1: error: odd".into()));
    assert_eq!(said(&refusing.hairpin("reload")), (Some(1), String::new(), "x.toml:1:1: error: odd\n".into()));
    let json = "{\"schema_version\":1,\"error\":\"x.toml:1:1: error: odd\"}\n";
    assert_eq!(said(&refusing.hairpin("reload -o json")), (Some(1), json.into(), String::new()));
    assert_eq!(said(&refusing.hairpin("upgrade")).0, Some(1));
    let program = said(&refusing.hairpin("upgrade --program /nonexistent/hairpin"));
    assert!(program.2.starts_with("cannot use the program /nonexistent/hairpin"), "{program:?}");
}

#[test]
fn diff_exits_like_diff() {
    let file = Scratch::new("diff", "interfaces = []\n");
    let line = format!("diff {}", file.path());
    let instance = Instance::new("diff", |request| match request {
        ControlRequest::Diff { text, .. } if text == "interfaces = []\n" => ControlAnswer::Changes(Changes::default()),
        other => ControlAnswer::Error(format!("{other:?}")),
    });
    assert_eq!(said(&instance.hairpin(&line)), (Some(0), "no change\n".into(), String::new()));
    let later = Changes { later: vec!["workers: 2 -> 4".into()], ..Changes::default() };
    let different = Instance::new("different", move |_| ControlAnswer::Changes(later.clone()));
    assert_eq!(said(&different.hairpin(&line)).0, Some(1));
    let refusing = Instance::new("diff-refusing", |_| ControlAnswer::Error("x.toml:1:1: error: odd".into()));
    assert_eq!(said(&refusing.hairpin(&line)), (Some(2), String::new(), "x.toml:1:1: error: odd\n".into()));
    assert_eq!(said(&refusing.hairpin("diff /nonexistent.toml")).0, Some(2));
    assert_eq!(hairpin(&["diff", file.path(), "--socket", "/nonexistent/s"]).status.code(), Some(2));
}

/// Has 2,500 connections, which it gives 1,000 at a time at most; every page but the first is short by one.
fn many(request: &ControlRequest) -> ControlAnswer {
    let ControlRequest::Connections(query) = request else { return ControlAnswer::Status(Box::default()) };
    let (first, all) = (query.cursor.unwrap_or(0), 2500);
    if query.limit == 0 {
        return ControlAnswer::Connections(Page { matched: all, ..Page::default() });
    }
    let end = all.min(first + u64::from(query.limit.min(1000)) - u64::from(first > 0 && query.limit > 1));
    let connection = |n| ConnectionView { client: format!("203.0.113.7:{n}"), ..ConnectionView::default() };
    let connections: Vec<_> = (first..end).map(connection).collect();
    ControlAnswer::Connections(Page {
        matched: connections.len() as u64,
        connections,
        next: (end < all).then_some(end),
    })
}

#[test]
fn connections_are_listed_page_by_page() {
    let instance = Instance::new("connections", many);
    let listed = out(&instance.hairpin("connections"));
    assert_eq!(listed.lines().count(), 102, "{listed}");
    assert_eq!(listed.lines().last(), Some("100 shown, 2500 fit; go on with --cursor 100, or show --all"));
    let (code, listed, note) = said(&instance.hairpin("connections --all -o json"));
    assert_eq!((code, note), (Some(0), String::new()));
    let clients = listed.lines().map(|line| serde_json::from_str::<ConnectionView>(line).unwrap().client);
    assert!(clients.eq((0..2500).map(|n| format!("203.0.113.7:{n}"))), "{listed}");
    let (_, listed, note) = said(&instance.hairpin("connections --limit 1500 --cursor 500 -o json"));
    assert_eq!(listed.lines().count(), 1500);
    assert_eq!(note, "1500 shown, 2500 fit; go on with --cursor 2000, or show --all\n");
    assert_eq!(out(&instance.hairpin("connections --count")), "2500\n");
    assert_eq!(out(&instance.hairpin("connections --count -o json")), "{\"schema_version\":1,\"connections\":2500}\n");
}

#[test]
fn filters_reach_the_instance() {
    let instance = Instance::new("filters", |_| ControlAnswer::Connections(Page::default()));
    let line = "connections --client 203.0.113.0/24 --service web --backend web-1 --state established --offloaded";
    assert_eq!(said(&instance.hairpin(line)), (Some(0), "no connection fits\n".into(), String::new()));
    let asked = Query {
        client: Some("203.0.113.0/24".into()),
        service: Some("web".into()),
        backend: Some("web-1".into()),
        state: Some("established".into()),
        offloaded: Some(true),
        cursor: None,
        limit: 100,
    };
    assert_eq!(instance.asked(), [ControlRequest::Connections(asked)]);
    let wrong = said(&instance.hairpin("connections --client 203.0.113"));
    assert!(wrong.0 == Some(1) && wrong.2.contains("203.0.113.0/24"), "{wrong:?}");
    assert_eq!(instance.asked(), []);
}

#[test]
fn a_listing_that_leads_nowhere_ends() {
    let nowhere = Page { next: Some(7), ..Page::default() };
    let instance = Instance::new("nowhere", move |_| ControlAnswer::Connections(nowhere.clone()));
    assert_eq!(instance.hairpin("connections --all").status.code(), Some(0));
}

#[test]
fn offload_shows_the_engine_or_explains_connections() {
    let connection = ConnectionView {
        client: "203.0.113.7:40112".into(),
        offload: "engine-full".into(),
        ..ConnectionView::default()
    };
    let instance = Instance::new("offload", move |request| match request {
        ControlRequest::Offload => {
            ControlAnswer::Offload(Box::new(OffloadView { policy: "always".into(), ..OffloadView::default() }))
        }
        _ => ControlAnswer::Connections(Page { connections: vec![connection.clone()], matched: 1, next: None }),
    });
    assert!(out(&instance.hairpin("offload")).starts_with("policy always, "));
    assert!(out(&instance.hairpin("offload -o json")).starts_with("{\"schema_version\":1,\"policy\":\"always\","));
    let explained = out(&instance.hairpin("offload --client 203.0.113.7:40112"));
    assert!(explained.starts_with("203.0.113.7:40112 -> ") && explained.ends_with("\n  engine-full\n"), "{explained}");
}

#[test]
fn batches_go_on_over_a_connection_that_was_silent_for_long() {
    let instance = Instance::new("silent", |request| match request {
        ControlRequest::Status => ControlAnswer::Status(Box::default()),
        _ => ControlAnswer::Error("not for tests".into()),
    });
    // The instance closes a connection that is silent for 5 s.
    let printed = out(&instance.hairpin("top --batch --count 1 --interval 6"));
    assert!(printed.contains("connections"), "{printed}");
}

#[test]
fn backends_are_overridden() {
    let instance = Instance::new("backend", |request| match request {
        ControlRequest::Backend(BackendChange { service, .. }) if service == "web" => {
            ControlAnswer::Done("so it is".into())
        }
        _ => ControlAnswer::Error("there is no service wbe; did you mean web?".into()),
    });
    let lines = [
        ("drain web web-1", BackendAction::Drain),
        ("enable web web-1", BackendAction::Enable),
        ("disable web web-1", BackendAction::Disable),
        ("weight web web-1 5", BackendAction::Weight(5)),
        ("reset web web-1", BackendAction::Reset),
    ];
    for (line, action) in lines {
        let output = instance.hairpin(&format!("backend {line}"));
        assert_eq!(said(&output), (Some(0), "so it is\n".into(), String::new()));
        let change = BackendChange { service: "web".into(), backend: "web-1".into(), action };
        assert_eq!(instance.asked(), [ControlRequest::Backend(change)]);
    }
    let (code, _, error) = said(&instance.hairpin("backend drain wbe web-1"));
    assert_eq!((code, &*error), (Some(1), "there is no service wbe; did you mean web?\n"));
}

#[test]
fn top_wants_a_terminal_and_capture_does_not() {
    let instance = Instance::new("terminal", |_| ControlAnswer::Status(Box::default()));
    let (code, _, error) = said(&instance.hairpin("top"));
    assert_eq!(code, Some(1));
    assert!(error.contains("`hairpin top --batch`") && error.contains("`hairpin status --watch`"), "{error}");
    // As text it goes to anything, and has no escape sequences.
    let (code, text, error) = said(&instance.hairpin("top --batch --count 2"));
    assert_eq!((code, error), (Some(0), String::new()));
    assert_eq!((text.matches("NAME").count(), text.contains('\x1b')), (2, false), "{text}");
    let (code, _, error) = said(&instance.hairpin("capture --service wbe"));
    assert_eq!(code, Some(1));
    assert!(error.starts_with("there is no service \"wbe\""), "{error}");
}

/// `hairpin top` on a terminal that is no process's controlling one, so that the kernel sends no signal when it goes away.
struct Top {
    _instance: Instance,
    child: std::process::Child,
    terminal: File,
}

impl Top {
    /// It has drawn something when this returns.
    fn start(name: &str) -> Top {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let instance = Instance::new(name, |_| ControlAnswer::Status(Box::default()));
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let path = ptsname(&terminal, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let end = || std::process::Stdio::from(rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap());
        // A new terminal has no size, and nothing is drawn on one of 0 by 0.
        let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&terminal, size).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hairpin"));
        command.args(["top", "--socket"]).arg(instance.directory.join("s"));
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        drop(command);
        let mut terminal = File::from(terminal);
        // It draws ten times a second; after the third drawing behind the one with the name it waits for a key.
        let (mut seen, mut shown, mut more) = ([0; 4096], String::new(), 3);
        while more > 0 {
            let mut polled = [rustix::event::PollFd::new(&terminal, rustix::event::PollFlags::IN)];
            let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut polled, Some(&patience)), Ok(1), "it draws nothing more: {shown}");
            let length = terminal.read(&mut seen).unwrap();
            more -= i32::from(shown.contains("instance"));
            shown.push_str(&String::from_utf8_lossy(&seen[..length]));
        }
        Top { _instance: instance, child, terminal }
    }

    /// How it ends; that it does not is told by the time this takes.
    fn end(&mut self) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_ends_when_its_terminal_goes_away() {
    let mut top = Top::start("top-gone");
    top.terminal = File::open("/dev/null").unwrap();
    assert!(top.end().is_some(), "it runs on without a terminal");
}

#[test]
fn top_ends_with_sigterm_and_gives_the_terminal_back() {
    let mut top = Top::start("top-signal");
    let pid = rustix::process::Pid::from_child(&top.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // Output written on its way out must not wait for a reader.
    let mut terminal = top.terminal.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        // The end of a terminal is an error (EIO).
        let _ = terminal.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    assert_eq!(top.end().and_then(|status| status.code()), Some(0));
    assert!(reader.join().unwrap().contains("\x1b[?1049l"), "the alternate screen is left");
}

/// The completions that bash offers at the end of `line`, in which `@` is the instance.
fn completed(instance: Option<&Instance>, line: &str) -> Vec<String> {
    const SCRIPT: &str = r#"
        source <(hairpin completions bash)
        function=$(complete -p hairpin | sed 's/.*-F \([^ ]*\).*/\1/')
        COMP_LINE=$1 COMP_POINT=${#1}
        read -ra COMP_WORDS <<<"$1"
        [[ $1 == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        $function hairpin "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let socket = instance.map_or(PathBuf::from("/nonexistent/s"), |instance| instance.directory.join("s"));
    let line = line.replace('@', &format!("--socket {}", socket.display()));
    let programs = Path::new(env!("CARGO_BIN_EXE_hairpin")).parent().unwrap().to_str().unwrap().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    let output = bash.env("PATH", path).args(["-c", SCRIPT, "bash", &line]).output().expect("there is bash");
    assert_eq!((output.status.success(), err(&output)), (true, String::new()), "{line}");
    out(&output).lines().filter(|line| !line.is_empty()).map(str::to_string).collect()
}

#[test]
fn bash_completes_services_and_backends() {
    let backend = |name: &str| BackendStatus { name: name.into(), ..BackendStatus::default() };
    let service = |name: &str, backends: &[&str]| ServiceStatus {
        name: name.into(),
        backends: backends.iter().map(|name| backend(name)).collect(),
        ..ServiceStatus::default()
    };
    let services = vec![service("web", &["10.0.2.11:8080", "10.0.2.12:8080", "spare"]), service("dns", &["ns"])];
    let status = Status { services, ..Status::default() };
    let instance = Instance::new("complete", move |_| ControlAnswer::Status(Box::new(status.clone())));
    let offered = |line: &str| completed(Some(&instance), line);
    assert_eq!(offered("hairpin backend drain @ "), ["dns", "web"]);
    assert_eq!(offered("hairpin backend drain @ w"), ["web"]);
    assert_eq!(offered("hairpin backend weight @ web "), ["10.0.2.11:8080", "10.0.2.12:8080", "spare"]);
    assert_eq!(offered("hairpin backend drain web @ sp"), ["spare"]);
    // Bash replaces what stands behind the last colon.
    assert_eq!(offered("hairpin backend drain @ web 10.0.2.12:80"), ["8080"]);
    assert_eq!(offered("hairpin connections @ --service "), ["dns", "web"]);
    assert_eq!(offered("hairpin capture @ --service dns --backend "), ["ns"]);
    // Everything else is as it was.
    assert_eq!(offered("hairpin conn"), ["connections"]);
    assert_eq!(completed(None, "hairpin backend drain @ "), Vec::<String>::new(), "no instance, no names, no noise");
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = hairpin(&["completions", shell]);
        assert!(output.status.success(), "{}", err(&output));
        for word in ["connections", "drain", "snap-length"] {
            assert!(out(&output).contains(word), "{shell} {word}");
        }
    }
}
