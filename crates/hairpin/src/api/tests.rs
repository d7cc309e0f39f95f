//! The API over its socket, with a configuration that lies in memory.

use super::openapi::openapi;
use super::*;
use crate::config;
use crate::control::Changes;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

const FILE: &str = "interfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\nlisten = \"192.0.2.1:80/tcp\"\nbackends = \
    [\"10.0.0.1:80\"]\n";

struct Fixture {
    directory: PathBuf,
    document: Arc<Mutex<Document>>,
    asked: Arc<Mutex<Vec<WriteRequest>>>,
    counts: Arc<ServerCounts>,
    _server: ApiServer,
}

impl Fixture {
    fn new(name: &str) -> Fixture {
        let directory = std::env::temp_dir().join(format!("hairpin-api-server-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        let document = Arc::new(Mutex::new(Document::of(FILE).unwrap()));
        let asked: Arc<Mutex<Vec<WriteRequest>>> = Arc::default();
        let counts = Arc::new(ServerCounts::new(&CODES, &Closed::ALL));
        let (read, written, noted) = (Arc::clone(&document), Arc::clone(&document), Arc::clone(&asked));
        let write = move |request: WriteRequest| {
            noted.lock().unwrap().push(request.clone());
            let mut current = written.lock().unwrap();
            let (new, is_new) = request.perform(&current)?;
            config::parse("configuration", new.text()).map_err(|problems| request.refusal(&new, &problems))?;
            let before = current.version().to_owned();
            *current = new;
            Ok(Applied { before, version: current.version().to_owned(), is_new, changes: Changes::default() })
        };
        let sources = ApiSources {
            read: Box::new(move || Ok(Arc::new(read.lock().unwrap().clone()))),
            write: Box::new(write),
            certificates: Box::new(|_| Err(Refused::Busy("there are none".to_owned()))),
            counts: Arc::clone(&counts),
            log: |_| {},
        };
        let _server = serve(&directory.join("i.api.sock"), sources).unwrap();
        Fixture { directory, document, asked, counts, _server }
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("i.api.sock")
    }

    fn version(&self) -> String {
        self.document.lock().unwrap().version().to_owned()
    }

    /// The status code and everything behind the head's first line.
    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        write!(stream, "{head}\r\nHost: x\r\nConnection: close\r\n{length}\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (first, rest) = answer.split_once("\r\n").unwrap_or_else(|| panic!("{head}: {answer}"));
        (first.split(' ').nth(1).unwrap().parse().unwrap(), rest.to_owned())
    }

    fn write(&self, method_and_path: &str, body: &str) -> (u16, String) {
        self.ask(&format!("{method_and_path} HTTP/1.1\r\nIf-Match: \"{}\"", self.version()), body)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn objects_are_read_and_written() {
    let fixture = Fixture::new("written");
    let before = fixture.version();
    let (code, answer) = fixture.ask("GET /v1/services/web/backends HTTP/1.1", "");
    assert!(code == 200 && answer.ends_with("[{\"address\":\"10.0.0.1:80\"}]\n"), "{answer}");
    assert!(answer.to_lowercase().contains(&format!("etag: \"{before}\"")), "{answer}");
    let (code, answer) = fixture.write("PUT /v1/services/web/backends/b", "{\"address\":\"10.0.0.2:80\",\"weight\":2}");
    let now = fixture.version();
    assert!(code == 201 && answer.contains(&before) && answer.contains(&now) && now != before, "{answer}");
    let (code, _) = fixture.write("PATCH /v1/services/web/backends/b", "{\"weight\":3}");
    assert_eq!(
        (code, fixture.document.lock().unwrap().tree()["service"][0]["backend"][0]["weight"].clone()),
        (200, 3.into())
    );
    let (code, answer) = fixture.ask("GET /v1/config HTTP/1.1\r\nAccept: application/toml", "");
    assert!(code == 200 && answer.ends_with(fixture.document.lock().unwrap().text()), "{answer}");
    let changes = "{\"changes\":[{\"method\":\"DELETE\",\"path\":\"/services/web/backends/b\"},{\"method\":\"PUT\",\"path\":\
        \"/services/mail\",\"body\":{\"listen\":\"192.0.2.1:25/tcp\",\"backends\":[\"10.0.0.3:25\"]}}]}";
    assert_eq!(fixture.write("POST /v1/transactions", changes).0, 200);
    let (code, answer) = fixture.ask("GET /v1/services HTTP/1.1", "");
    assert!(code == 200 && answer.contains("mail") && !answer.contains("\"weight\""), "{answer}");
    let who = fixture.asked.lock().unwrap()[0].who.clone();
    assert_eq!(who, format!("uid {}, pid {}", rustix::process::getuid().as_raw(), std::process::id()));
    assert_eq!(fixture.write("DELETE /v1/services/mail", "").0, 200);
    let mode = std::fs::metadata(fixture.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let answers: u64 = fixture.counts.answers().map(|(_, count)| count).sum();
    assert_eq!(answers, 7);
}

#[test]
fn what_is_refused_changes_nothing() {
    let fixture = Fixture::new("refused");
    let before = fixture.version();
    let right = "{\"address\":\"10.0.0.2:80\"}";
    let put = "PUT /v1/services/web/backends/b";
    let old = format!("{put} HTTP/1.1\r\nIf-Match: \"00000000000000000000000000000000\"");
    let other = format!("{put} HTTP/1.1\r\nContent-Type: text/plain\r\nIf-Match: \"{before}\"");
    for ((code, answer), expected, said) in [
        (fixture.ask(&format!("{put} HTTP/1.1"), right), 428, &*before),
        (fixture.ask(&format!("{put} HTTP/1.1\r\nIf-Match: *"), right), 428, &before),
        (fixture.ask(&format!("{put} HTTP/1.1\r\nIf-Match: W/\"{before}\""), right), 400, "If-Match"),
        (fixture.ask(&old, right), 412, "0000000000"),
        (fixture.ask(&other, right), 415, "application/json"),
        (fixture.write(put, "{\"address\":"), 400, "EOF"),
        (fixture.write(put, "{\"address\":\"10.0.0.2:80\",\"address\":\"10.0.0.3:80\"}"), 400, "twice"),
        (fixture.write(put, "{\"address\":\"10.0.0.2\"}"), 422, "\"body\":\"/address\""),
        (fixture.write(put, "{\"address\":\"10.0.0.2:80\",\"weigth\":1}"), 422, "did you mean `weight`"),
        (fixture.write("PUT /v1/services/mail/backends/b", right), 404, "no service"),
        (fixture.write("DELETE /v1/services/web", right), 400, "no body"),
        (fixture.write("DELETE /v1/services/web", ""), 422, "there is no service"),
        (fixture.write("PUT /v1/services", "[]"), 405, "GET, HEAD"),
        (fixture.write("POST /v1/transactions", "{\"changes\":[]}"), 400, "1 to 1024"),
        (fixture.write("GET /v1/wobble", ""), 404, "/v1/services"),
        (fixture.write("GET /v1/services/wob", ""), 404, "wob"),
    ] {
        assert!(code == expected && answer.contains(said), "{expected}, {said}: {code} {answer}");
    }
    assert_eq!(fixture.version(), before);
}

#[test]
fn bounds_hold_against_hostile_clients() {
    let fixture = Fixture::new("hostile");
    let large = format!("PUT /v1/config HTTP/1.1\r\nIf-Match: \"x\"\r\nContent-Length: {}", limits::BODY_BYTES_MAX + 1);
    assert_eq!(fixture.ask(&large, "").0, 413);
    let long = format!("GET /{} HTTP/1.1", "x".repeat(HEAD_BYTES));
    let mut stream = UnixStream::connect(fixture.socket()).unwrap();
    let _ = write!(stream, "{long}\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(!answer.contains(" 200 "), "{answer}");
    let idle: Vec<UnixStream> =
        (0..3 * limits::CONNECTIONS_MAX).map(|_| UnixStream::connect(fixture.socket()).unwrap()).collect();
    assert_eq!(fixture.ask("GET /v1/config HTTP/1.1", "").0, 200);
    drop(idle);
    let closed: u64 = fixture.counts.closed().map(|(_, count)| count).sum();
    assert!(closed > 0);
}

const HEAD_BYTES: usize = limits::HEAD_BYTES_MAX * 2;

#[test]
fn a_socket_that_others_could_replace_is_not_served() {
    let fixture = Fixture::new("others");
    std::fs::set_permissions(&fixture.directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = require_own(&fixture.socket()).unwrap_err().to_string();
    assert!(refused.contains("others could replace") && refused.contains("777"), "{refused}");
    std::fs::set_permissions(&fixture.directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(fixture.socket(), std::fs::Permissions::from_mode(0o660)).unwrap();
    assert!(require_own(&fixture.socket()).unwrap_err().to_string().contains("mode 660"));
}

#[test]
fn the_description_is_up_to_date_and_refers_to_what_it_has() {
    let text = openapi();
    let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
    for reference in text.split("\"$ref\": \"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(parsed.pointer(reference).is_some(), "{reference}");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
    if std::env::var_os("HAIRPIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let file = std::fs::read_to_string(path).unwrap_or_default();
    assert!(file == text, "openapi.json: run: HAIRPIN_WRITE_DOCS=1 cargo test -p hairpin --lib api");
}
