//! The conformance tests of h2spec (<https://github.com/summerwind/h2spec>), whose binary `H2SPEC` names.

use crate::fixture::{Site, http, server};

#[test]
#[ignore = "needs h2spec: make test-h2spec"]
fn h2spec_finds_nothing() {
    let binary = std::env::var("H2SPEC").expect("H2SPEC names the binary");
    // The server runs until the process ends.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tell.send(server().await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let site = Site::new(http(), told.recv().unwrap());
    let port = site.address.port().to_string();
    let arguments =
        ["--tls", "--insecure", "--host", "127.0.0.1", "--port", &port, "--path", "/bytes/1000", "--strict"];
    let status = std::process::Command::new(binary).args(arguments).status().unwrap();
    eprintln!("{:?}", site.counted().statistics);
    assert!(status.success());
}
