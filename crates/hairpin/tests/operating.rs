//! Messages on the command line when something is in the way.

use hairpin::control::{Changes, ControlAnswer, ControlRequest, serve};
use hairpin::status::{ServiceStatus, Status};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

fn hairpin(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hairpin")).args(arguments).output().expect("the binary runs")
}

/// How a command exits and what it says.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A directory that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hairpin-operating-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process in a network namespace of its own; `None` where this one may not make it.
fn apart() -> Option<std::process::Child> {
    let mut child = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().ok()?;
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let process = child.id().to_string();
    while child.try_wait().ok()?.is_none() {
        if namespace(&process).is_some_and(|its| Some(its) != namespace("self")) {
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

#[test]
fn flush_from_another_network_namespace_is_refused() {
    let Some(mut process) = apart() else { return };
    let file = std::fs::metadata(format!("/proc/{}/ns/net", process.id())).unwrap();
    let (device, inode) = (file.dev(), file.ino());
    let scratch = Scratch::new("namespace");
    let (socket, record) = (scratch.path("s.sock"), scratch.path("s.objects"));
    let text = |namespace: &str| {
        format!(
            r#"{{"instance":"s","plane":"none","pin_directory":"/nonexistent","taps":[],"forwarding":[]{namespace}}}"#
        )
    };
    let flush = || hairpin(&["stop", "--flush", "--socket", socket.to_str().unwrap()]);
    std::fs::write(&record, text(&format!(r#","namespace":{{"device":{device},"inode":{inode}}}"#))).unwrap();
    let refused = said(&flush());
    let place = format!("the network namespace of process {0} (go there with `nsenter --net -t {0}`)", process.id());
    let why = format!(
        "not everything could be removed: instance s has its devices in {place}, not here; nothing is removed\n"
    );
    let kept = record.exists();
    // Without the process nothing keeps the namespace, and nothing is left in it.
    process.kill().unwrap();
    process.wait().unwrap();
    let gone = said(&flush());
    assert_eq!(refused, (Some(1), String::new(), why));
    assert!(kept);
    assert_eq!(gone, (Some(0), String::new(), String::new()));
    // Objects recorded by an earlier version are removed as before.
    std::fs::create_dir_all(&scratch.0).unwrap();
    std::fs::write(&record, text("")).unwrap();
    let earlier = said(&flush());
    assert!(!record.exists());
    assert_eq!(earlier, (Some(0), String::new(), String::new()));
}

/// The messages of a start beside an instance that serves 192.0.2.1:80/tcp on surely-absent, in the namespace of `process`.
fn start_beside(process: u32, listen: &str) -> String {
    let scratch = Scratch::new(&format!("beside-{process}-{}", listen.replace([':', '/'], "-")));
    let service = ServiceStatus { listen: "192.0.2.1:80/tcp".into(), ..ServiceStatus::default() };
    let status = Status {
        instance: "first".into(),
        pid: process,
        interfaces: vec!["surely-absent".into()],
        services: vec![service],
        ..Status::default()
    };
    serve(&scratch.path("first.sock"), move |_| ControlAnswer::Status(Box::new(status.clone()))).unwrap();
    let file = scratch.path("second.toml");
    let text = format!(
        "instance = \"second\"\ninterfaces = [\"surely-absent\"]\n[pool]\naddresses = [\"10.0.9.1\"]\n[control]\n\
         directory = {:?}\n[[service]]\nlisten = \"{listen}\"\nbackends = [\"10.0.0.1:80\"]\n",
        scratch.0
    );
    std::fs::write(&file, text).unwrap();
    let (code, out, error) = said(&hairpin(&["run", "-c", file.to_str().unwrap()]));
    assert_eq!((code, &*out), (Some(1), ""));
    error
}

#[test]
fn an_instance_with_packets_of_another_does_not_start() {
    let own = std::process::id();
    for listen in ["192.0.2.1:80/tcp", "192.0.2.1:80/http"] {
        let error = start_beside(own, listen);
        let expected =
            format!("instance first (process {own}) already serves 192.0.2.1:80/tcp on surely-absent, and only one");
        assert!(error.starts_with(&expected), "{error}");
    }
    for listen in ["192.0.2.1:80/udp", "192.0.2.1:81/tcp", "192.0.2.2:80/tcp"] {
        let error = start_beside(own, listen);
        assert!(!error.contains("already serves"), "{error}");
    }
    // Another network namespace has its own interfaces by the same names.
    let Some(mut process) = apart() else { return };
    let error = start_beside(process.id(), "192.0.2.1:80/tcp");
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(!error.contains("already serves"), "{error}");
}

#[test]
fn reload_tells_the_instance_which_file_is_meant() {
    let scratch = Scratch::new("reload");
    let file = scratch.path("own.toml");
    let text = format!(
        "interfaces = [\"a\"]\n[control]\ndirectory = {:?}\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = \
         [\"10.0.0.1:80\"]\n",
        scratch.0
    );
    std::fs::write(&file, text).unwrap();
    let expected = file.canonicalize().unwrap();
    serve(&scratch.path("default.sock"), move |request| match request {
        ControlRequest::Reload { file: Some(file), discard: false } if file == expected => {
            ControlAnswer::Changes(Changes::default())
        }
        other => ControlAnswer::Error(format!("{other:?}")),
    })
    .unwrap();
    let output = hairpin(&["reload", "-c", file.to_str().unwrap()]);
    assert_eq!(said(&output), (Some(0), "reloaded: nothing has changed\n".into(), String::new()));
    let output = hairpin(&["reload", "--socket", scratch.path("default.sock").to_str().unwrap()]);
    assert_eq!(said(&output), (Some(1), String::new(), "Reload { file: None, discard: false }\n".into()));
}

#[test]
fn watch_takes_its_seconds_in_every_form() {
    let scratch = Scratch::new("watch");
    let socket = scratch.path("s");
    serve(&socket, |_| ControlAnswer::Error("no status now".into())).unwrap();
    for form in [&["--watch"][..], &["-w"], &["--watch=2"], &["--watch", "2"], &["-w2"], &["-w", "2"]] {
        let line = [&["status"], form, &["--socket", socket.to_str().unwrap()]].concat();
        assert_eq!(said(&hairpin(&line)), (Some(1), String::new(), "no status now\n".into()), "{form:?}");
    }
    assert_eq!(hairpin(&["status", "--watch", "0"]).status.code(), Some(2));
}

#[test]
fn help_names_both_layers() {
    let (code, help, _) = said(&hairpin(&["--help"]));
    assert!(code == Some(0) && help.starts_with("A load balancer for layers 4 and 7 "), "{help}");
}
