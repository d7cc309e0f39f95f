//! Backends are told who a client is, by its certificate; openssl says what the certificate has.

use super::{NAME, PORT, Scene};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::tool::recorder::Recorder;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};

const RECORDER_PORT: u16 = 8090;
/// A CA and a client's certificate of it, in the directory `$1`. The subject has what must be escaped.
const MAKE: &str = "cd \"$1\"
printf '[req]\\ndistinguished_name = n\\n[n]\\n' > bare.cnf
ec='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config bare.cnf -utf8'
openssl req -x509 $ec -days 2 -subj /CN=ca -addext basicConstraints=critical,CA:TRUE -keyout ca.key -out ca.pem
openssl req $ec -subj '/C=SE/O=Shop, \"Inc\" <x>/emailAddress=a@shop.test/CN=till 7; Bj\u{f6}rn' -keyout client.key -out client.csr
printf 'basicConstraints=CA:FALSE\\nsubjectAltName=DNS:client.test\\n' > leaf.ext
openssl x509 -req -days 2 -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile leaf.ext -out client.pem";
const FIELDS: &str = "[service.http.request_headers.set]\nX-Client-Dn = \"{client_subject}\"\nX-Client-Sha256 = \
                      \"{client_fingerprint}\"\nX-Client-Verify = \"{client_verify}\"\n";

/// What openssl says of the client's certificate: subject and SHA-256.
fn expected(topology: &Topology) -> Result<[String; 2]> {
    let ask = |options: &str| {
        let file = topology.scratch.file("client.pem");
        topology.client.script(&format!("openssl x509 -noout -in {} {options}", file.display()))
    };
    let subject = ask("-subject -nameopt RFC2253")?;
    let print = ask("-fingerprint -sha256")?;
    let subject = subject.trim().strip_prefix("subject=").context("no subject")?.to_owned();
    let print = print.trim().rsplit('=').next().unwrap_or_default().replace(':', "").to_lowercase();
    Ok([subject, print])
}

/// The fields `x-client-*` of the head that came back, in lower case their names, sorted.
fn told(text: &str) -> Vec<String> {
    let of_us = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let name = name.to_ascii_lowercase();
        name.replace('_', "-").starts_with("x-client-").then(|| format!("{name}: {}", value.trim()))
    };
    let mut lines: Vec<String> = text.lines().filter_map(of_us).collect();
    lines.sort();
    lines
}

/// The certificate of a client reaches the backend by HTTP/1.1, HTTP/2, and in sessions that openssl resumes with both
/// versions of TLS; what a client says there itself never does.
pub(super) fn are_told() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _recorder = Recorder::start(&topology.servers[0], RECORDER_PORT, "one")?;
    let certificate = certificate(&topology, "web.pem", &[NAME])?;
    let scratch = topology.scratch.file("");
    let mut make = std::process::Command::new("sh");
    make.args(["-ec", MAKE, "sh"]).arg(&scratch);
    command::output(&mut make)?;
    let of_clients =
        format!("client_certificates = \"optional\"\nclient_roots = {:?}\n", topology.scratch.file("ca.pem"));
    let mut web =
        PeerService { servers: vec![1], server_port: RECORDER_PORT, ..PeerService::https("web", PORT, &certificate) };
    web.tables.push_str(&of_clients);
    web.tables.push_str(FIELDS);
    let services = vec![web];
    let options = HairpinOptions::default();
    let hairpin = Hairpin::start(&topology, &services, &options)?;
    let scene = Scene { hairpin, _servers: None, certificate, topology, services, options };

    let [subject, print] = expected(&scene.topology)?;
    let known =
        [format!("x-client-dn: {subject}"), format!("x-client-sha256: {print}"), "x-client-verify: SUCCESS".to_owned()];
    let spoofed = [
        "--header",
        "X-Client-Dn: CN=admin",
        "--header",
        "X_Client_Sha256: 00",
        "--header",
        "x-client-verify: SUCCESS",
    ];
    let files = ["client.pem", "client.key"].map(|file| scene.topology.scratch.file(file).display().to_string());
    for option in ["--http1.1", "--http2"] {
        let url = format!("https://{NAME}/echo");
        let shows = ["--cert", &*files[0], "--key", &*files[1], option];
        let said = told(&scene.curl(&[&shows[..], &spoofed].concat(), &url).with_context(|| scene.hairpin.logs())?);
        ensure!(said == known, "{option}: {said:#?}, not {known:#?}");
        let said = told(&scene.curl(&[&[option][..], &spoofed].concat(), &url)?);
        ensure!(said == ["x-client-verify: NONE"], "{option}: {said:#?}");
    }
    for version in ["-tls1_2", "-tls1_3"] {
        let shows = format!("-cert {} -key {} -sess_out {}/session{version}", files[0], files[1], scratch.display());
        let first = speak(&scene, &format!("{version} {shows}"))?;
        ensure!(first.contains("New, TLS") && told(&first) == known, "{version}: {first}");
        let again = speak(&scene, &format!("{version} -sess_in {}/session{version}", scratch.display()))?;
        ensure!(again.contains("Reused, TLS"), "{version}: {again}");
        ensure!(told(&again) == known, "{version}: {:#?}", told(&again));
    }
    Ok(())
}

/// A request by openssl: what it prints of the session, and the response.
fn speak(scene: &Scene, options: &str) -> Result<String> {
    let lines = format!(
        "printf 'GET /echo HTTP/1.1\\r\\nHost: {NAME}\\r\\nX-Client-Dn: CN=admin\\r\\nConnection: close\\r\\n\\r\\n' | openssl \
         s_client -connect {}:{PORT} -servername {NAME} -ign_eof {options} 2>/dev/null",
        vip(Family::V4)
    );
    scene.topology.client.script(&lines)
}
