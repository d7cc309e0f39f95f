//! Chromium without a window, driven by its DevTools protocol over a pipe: what a page shows, what it asks for, and what it
//! complains about.

use crate::cleanup;
use crate::namespace::{Namespace, Scratch};
use crate::process::patience;
use crate::servers::web;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time until an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a page is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// A browser with one page; ended when dropped.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    number: u64,
    session: Option<String>,
    /// The addresses of everything that was asked for.
    pub requests: Vec<String>,
    /// Errors and warnings of the console, exceptions, refusals by a policy.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts it in a namespace. Fails if there is none.
    pub fn start(namespace: &Namespace, scratch: &Scratch) -> Result<Browser> {
        let program = web::browser().context("no browser (scripts/install-deps)")?;
        let log = scratch.file("browser.log");
        let mut command = namespace.command("sh");
        // It reads commands from descriptor 3 and writes to 4.
        command.args(["-c", "exec 3<&0 4>&1; exec \"$0\" \"$@\" </dev/null >&2", program]);
        // As root it has no sandbox; what it loads is ours.
        command.args([
            "--headless",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]);
        command.args(["--disable-background-networking", "--no-first-run", "--hide-scrollbars", "--disable-lcd-text"]);
        command.arg(format!("--user-data-dir={}", scratch.file("browser").display())).arg("about:blank");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut child = command.spawn().context("the browser could not be started")?;
        cleanup::add_process(child.id());
        let commands = child.stdin.take().context("no pipe to the browser")?;
        let mut output = BufReader::new(child.stdout.take().context("no pipe from the browser")?);
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|read| read > 1) {
                message.pop();
                if serde_json::from_slice(&message).is_ok_and(|message: Value| sender.send(message).is_err()) {
                    break;
                }
                message.clear();
            }
        });
        let (requests, complaints) = (Vec::new(), Vec::new());
        let mut browser = Browser { child, commands, messages, number: 0, session: None, requests, complaints };
        browser.attach()?;
        Ok(browser)
    }

    fn attach(&mut self) -> Result<()> {
        let targets = self.call("Target.getTargets", json!({}))?;
        let page = targets["targetInfos"].as_array().into_iter().flatten().find(|target| target["type"] == "page");
        let page = page.context("the browser has no page")?["targetId"].clone();
        let attached = self.call("Target.attachToTarget", json!({ "targetId": page, "flatten": true }))?;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(())
    }

    /// A command of the protocol; its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.commands.write_all(message.to_string().as_bytes())?;
        self.commands.write_all(&[0])?;
        let deadline = Instant::now() + patience(ANSWER_TIMEOUT);
        loop {
            let message = match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => bail!("the browser does not answer {method}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the browser has ended ({method})"),
            };
            if message["id"] == self.number {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].clone());
            }
            self.hear(&message);
        }
    }

    fn hear(&mut self, message: &Value) {
        let parameters = &message["params"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match message["method"].as_str() {
            Some("Network.requestWillBeSent") => self.requests.push(text(&parameters["request"]["url"])),
            Some("Runtime.exceptionThrown") => self.complaints.push(parameters["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled") if ["error", "warning"].contains(&&*text(&parameters["type"])) => {
                self.complaints.push(parameters["args"].to_string());
            }
            Some("Log.entryAdded") if ["error", "warning"].contains(&&*text(&parameters["entry"]["level"])) => {
                self.complaints.push(parameters["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Goes to a page.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.call("Page.navigate", json!({ "url": url }))?;
        ensure!(opened["errorText"].is_null(), "{url}: {}", opened["errorText"]);
        Ok(())
    }

    /// The value of an expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters)?;
        ensure!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        Ok(result["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub fn wait_until(&mut self, expression: &str, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + patience(timeout);
        while self.evaluate(expression)? != true {
            if Instant::now() > deadline {
                let shown = self.evaluate("document.body.innerText").unwrap_or_default();
                bail!("it does not become true: {expression}\nthe page shows: {}", shown.as_str().unwrap_or_default());
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// Gives the page's window a size, in pixels of the page, each of so many of a picture's.
    pub fn size(&mut self, width: u32, height: u32, scale: f64) -> Result<()> {
        let is_phone = width < 500;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", size).map(drop)
    }

    /// Whether its user prefers dark colours.
    pub fn dark(&mut self, is_dark: bool) -> Result<()> {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", features).map(drop)
    }

    /// Writes a picture of the window (PNG).
    pub fn picture(&mut self, file: &Path) -> Result<()> {
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }))?;
        let text = file.with_extension("base64");
        std::fs::write(&text, picture["data"].as_str().context("no picture")?)?;
        let output = Command::new("base64").arg("--decode").arg(&text).output()?;
        ensure!(output.status.success(), "base64 --decode {} failed", text.display());
        std::fs::write(file, output.stdout)?;
        Ok(std::fs::remove_file(text)?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill() {
            eprintln!("the browser could not be ended: {error}");
        }
        // It was killed: this takes no time.
        let _ = self.child.wait();
        cleanup::remove_process(self.child.id());
    }
}
