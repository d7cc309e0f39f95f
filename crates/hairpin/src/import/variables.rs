//! nginx's variables in texts, and Hairpin's in their place.

/// Where a text stands: which variables there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextPlace {
    /// The location of a redirect.
    Redirect,
    /// A field of requests.
    Request,
    /// A field of responses.
    Response,
}

/// The text with Hairpin's variables; else the name of one that has no counterpart. `server_name`: the first name of the server.
pub(super) fn translated(text: &str, place: TextPlace, server_name: &str) -> Result<String, String> {
    // The query with its question mark, in the ways in which it is written.
    let text =
        text.replace("$is_args$args", "${query}").replace("?$args", "${query}").replace("?$query_string", "${query}");
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find('$') {
        out += &literal(&rest[..at]);
        rest = &rest[at + 1..];
        let name = match rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, behind)) => {
                rest = behind;
                name
            }
            None => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                let (name, behind) = rest.split_at(end);
                rest = behind;
                name
            }
        };
        match counterpart(name, place) {
            Some(ours) => out += ours,
            // Of a server without a name, it is what was asked for.
            None if name == "server_name" && !server_name.is_empty() => out += &literal(server_name),
            None if name == "server_name" && place != TextPlace::Response => out += "{host}",
            None => return Err(format!("${name}")),
        }
    }
    Ok(out + &literal(rest))
}

fn literal(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

fn counterpart(name: &str, place: TextPlace) -> Option<&'static str> {
    let of_request = match name {
        "host" => "{host}",
        "http_host" => "{authority}",
        "request_uri" => "{path}{query}",
        "uri" | "document_uri" => "{path}",
        "query" => "{query}",
        _ => "",
    };
    if !of_request.is_empty() {
        return (place != TextPlace::Response).then_some(of_request);
    }
    match name {
        "scheme" => Some("{scheme}"),
        _ if place == TextPlace::Redirect => None,
        "remote_addr" => Some("{client_ip}"),
        "remote_port" => Some("{client_port}"),
        "server_addr" => Some("{vip}"),
        "server_port" => Some("{vip_port}"),
        "upstream_addr" => Some("{backend}"),
        "request_method" if place == TextPlace::Request => Some("{method}"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_counterparts_or_are_told() {
        let redirect = |text| translated(text, TextPlace::Redirect, "example.com");
        assert_eq!(redirect("https://$host$request_uri").unwrap(), "https://{host}{path}{query}");
        assert_eq!(redirect("${scheme}://$server_name/new$is_args$args").unwrap(), "{scheme}://example.com/new{query}");
        assert_eq!(redirect("/a{b}").unwrap(), "/a{{b}}");
        assert_eq!(redirect("/$1").unwrap_err(), "$1");
        let request = |text| translated(text, TextPlace::Request, "");
        assert_eq!(request("$remote_addr:$server_port").unwrap(), "{client_ip}:{vip_port}");
        assert_eq!(request("$cookie_a").unwrap_err(), "$cookie_a");
        assert_eq!(translated("$host", TextPlace::Response, "").unwrap_err(), "$host");
    }
}
