//! Reads `[api]`.

use super::instance::absolute_path;
use super::reader::TomlTable;
use super::reference;
use super::secret_file::{self, SecretFileError};
use crate::api::{ApiSettings, RemoteSettings, TOKENS_FORM, Tokens};
use hairpin_diagnostics::Sink;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The settings; `None`: the file asks for no API, or it is wrong, which is reported.
pub(super) fn read(sink: &Sink<'_>, top: &TomlTable<'_>) -> Option<ApiSettings> {
    if !top.has("api") {
        return None;
    }
    let table = top.table("api", &reference::API);
    let state = absolute_path(sink, &table, "state");
    let remote = if table.has("listen") { read_remote(sink, &table).map(Some) } else { read_local(&table) };
    Some(ApiSettings { state: state?, remote: remote? })
}

/// Without `listen` the other fields say nothing.
fn read_local(table: &TomlTable<'_>) -> Option<Option<RemoteSettings>> {
    for name in ["certificate", "client_roots", "tokens"].into_iter().filter(|name| table.has(name)) {
        let what = format!("`{name}` of [api] means nothing without `listen`");
        table.warning(&table.span_of(name), what, "give the address that the API is served at by TLS, or leave it out");
    }
    Some(None)
}

/// How the API is served by TCP: never without TLS, and never to a client that nothing is known of.
fn read_remote(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<RemoteSettings> {
    let listen = read_listen(table);
    let path = |name: &str| if table.has(name) { absolute_path(sink, table, name).map(Some) } else { Some(None) };
    let [certificate, client_roots, tokens] = ["certificate", "client_roots", "tokens"].map(path);
    if !table.has("certificate") && !table.is_in_parts() {
        let what = "`listen` of [api] is given, but `certificate` is missing: by TCP the API is served by TLS only";
        table.error(&table.span_of("listen"), what, "add the file with its certificate and key, or leave `listen` out");
    }
    if !table.has("client_roots") && !table.has("tokens") && !table.is_in_parts() {
        let what =
            "`listen` of [api] is given, but neither `client_roots` nor `tokens`: any client could change everything";
        let remedy = "name the file with the CAs of clients' certificates, or the file of their tokens, or both";
        table.error(&table.span_of("listen"), what, remedy);
    }
    if let Some(Some(file)) = &tokens
        && let Err((what, remedy)) = tokens_in(file)
    {
        table.error(&table.span_of("tokens"), format!("`tokens` \"{}\": {what}", file.display()), remedy);
        return None;
    }
    let (client_roots, tokens): (Option<PathBuf>, Option<PathBuf>) = (client_roots?, tokens?);
    Some(RemoteSettings { listen: listen?, certificate: certificate??, client_roots, tokens })
}

fn read_listen(table: &TomlTable<'_>) -> Option<SocketAddr> {
    let text = table.text("listen")?;
    let wrong = match text.value.parse::<SocketAddr>() {
        Err(_) => "not an address and port",
        Ok(address) if address.port() == 0 => "with port 0",
        Ok(address) if address.ip().is_multicast() => "with a multicast address",
        Ok(address) => return Some(address),
    };
    let remedy = "write \"192.0.2.2:9443\", \"127.0.0.1:9443\" or \"[2001:db8::2]:9443\"";
    table.error(&text.span, format!("`listen` is \"{}\", {wrong}", text.value), remedy);
    None
}

/// The tokens in the file at `path`, which only root and this process's user may read.
///
/// # Errors
/// What is wrong with it, and what would be right. The text has nothing of a token.
pub(crate) fn tokens_in(path: &Path) -> Result<Tokens, SecretFileError> {
    let bytes = secret_file::read(path, "tokens", TOKENS_FORM)?;
    Tokens::read(secret_file::lines(&bytes)).map_err(|what| (what, TOKENS_FORM.to_owned()))
}
