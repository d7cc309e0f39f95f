//! Why directives are not carried over.

use super::Notes;
use super::parse::Directive;

const NO_NEED: &str = "Hairpin has no such setting and needs none";
const FILES: &str = "Hairpin serves no files: put what does so behind it, as a backend";

/// Directives, by name or by the beginning of it (`*`), and why they have no counterpart.
const REASONS: [(&[&str], &str); 16] = [
    (&["gzip*", "brotli*", "gunzip*", "zstd*"], "Hairpin does not compress"),
    (
        &["proxy_cache*", "open_file_cache*", "expires", "etag", "if_modified_since", "proxy_no_cache", "proxy_store*"],
        "Hairpin does not cache",
    ),
    (
        &["error_page"],
        "`error_pages` of an https service gives pages to Hairpin's own answers; backends' responses keep theirs",
    ),
    (
        &[
            "root",
            "alias",
            "index",
            "try_files",
            "autoindex*",
            "charset*",
            "default_type",
            "types",
            "mp4*",
            "flv",
            "sub_filter*",
            "ssi*",
            "directio*",
            "sendfile_max_chunk",
            "output_buffers",
            "disable_symlinks",
            "log_not_found",
        ],
        FILES,
    ),
    (
        &[
            "fastcgi_*",
            "uwsgi_*",
            "scgi_*",
            "grpc_*",
            "memcached_*",
            "perl*",
            "js_*",
            "*_by_lua_block",
            "*_by_lua_file",
            "lua_*",
        ],
        "Hairpin speaks HTTP with backends, and runs no scripts",
    ),
    (
        &["access_log", "log_format", "error_log", "log_subrequest"],
        "Hairpin has an access log of its own: [access_log]",
    ),
    (&["limit_req*", "limit_conn*", "limit_rate*"], "Hairpin limits no rates"),
    (
        &["proxy_next_upstream*"],
        "another backend is tried while nothing of a request was sent (`connect_tries`), and for statuses in `retry_status` of a route",
    ),
    (
        &["auth_*", "satisfy", "secure_link*", "valid_referers"],
        "the import writes no `basic` or `forward_auth`: add them by hand",
    ),
    (&["rewrite"], "write a route with `redirect` or `replace_prefix`: the path goes on as it is"),
    (&["real_ip_*", "set_real_ip_from"], "name the proxies in front in `trusted` of [service.http.forwarded]"),
    (&["resolver*"], "name servers in [resolver]; without them, those of /etc/resolv.conf are asked"),
    (
        &["map", "geo", "set", "split_clients", "if", "break"],
        "Hairpin has no variables: write conditions of routes by hand",
    ),
    (&["stub_status", "status_zone", "api", "nginx_status"], "see `hairpin status`, and /metrics of [metrics]"),
    (&["mail", "load_module", "env", "wasm*"], "Hairpin has no counterpart"),
    (
        &[
            "user",
            "pid",
            "worker_*",
            "events",
            "daemon",
            "master_process",
            "thread_pool",
            "pcre_jit",
            "timer_resolution",
            "lock_file",
            "sendfile",
            "tcp_nopush",
            "tcp_nodelay",
            "aio*",
            "multi_accept",
            "use",
            "accept_mutex*",
            "types_hash*",
            "server_names_hash*",
            "variables_hash*",
            "map_hash*",
            "server_tokens",
            "server_name_in_redirect",
            "port_in_redirect",
            "absolute_redirect",
            "proxy_http_version",
            "proxy_redirect",
            "proxy_buffer*",
            "proxy_busy_buffers*",
            "proxy_request_buffering",
            "proxy_temp*",
            "proxy_max_temp*",
            "proxy_headers_hash*",
            "proxy_socket_keepalive",
            "proxy_pass_header",
            "proxy_pass_request*",
            "proxy_intercept_errors",
            "proxy_ignore_client_abort",
            "proxy_ssl_session_reuse",
            "proxy_ssl_protocols",
            "proxy_ssl_ciphers",
            "client_body_buffer*",
            "client_body_temp*",
            "client_body_in*",
            "client_header_buffer*",
            "large_client_header*",
            "reset_timedout_connection",
            "lingering_*",
            "keepalive_disable",
            "ssl_session_*",
            "ssl_ciphers",
            "ssl_prefer*",
            "ssl_dhparam",
            "ssl_ecdh*",
            "ssl_stapling*",
            "ssl_buffer_size",
            "ssl_trusted_certificate",
            "ssl_early_data",
            "ssl_reject_handshake",
            "merge_slashes",
            "recursive_error_pages",
            "msie_*",
            "underscores_in_headers",
            "ignore_invalid_headers",
            "http2_*",
            "http3*",
            "quic*",
            "zone",
            "keepalive_time",
            "proxy_protocol_timeout",
            "preread_*",
            "tcp_*",
            "ssl_conf_command",
            "proxy_upload_rate",
            "proxy_download_rate",
        ],
        NO_NEED,
    ),
];

/// Notes that a directive is not carried over.
pub(super) fn note(notes: &mut Notes, directive: &Directive) {
    notes.add(directive, of(&directive.name));
}

fn of(name: &str) -> &'static str {
    let fits = |pattern: &&str| match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(beginning), _) => name.starts_with(beginning),
        (_, Some(end)) => name.ends_with(end),
        _ => name == *pattern,
    };
    let known = REASONS.iter().find(|(patterns, _)| patterns.iter().any(&fits));
    known.map_or("Hairpin does not know it", |(_, why)| why)
}

/// Notes each directive of a block that is none of these.
pub(super) fn others(notes: &mut Notes, block: &[Directive], known: &[&str]) {
    block.iter().filter(|directive| !known.contains(&&*directive.name)).for_each(|directive| note(notes, directive));
}
