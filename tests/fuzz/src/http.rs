//! Targets of `l7::head` and `l7::body`. An input is a byte of parameters, then the stream.

use hairpin_core::l7::body::Chunks;
use hairpin_core::l7::head::{BadHead, Bounds, Fields, Method, ParseStatus, Request, Response, request, response};

/// Longer inputs are not cut at every byte.
const CUT_MAX: usize = 600;

/// A head is judged the same however it is cut; its parts lie in it, are what they are said to be, and written anew they
/// are read as the same again. Returns whether a head was accepted.
pub fn head(input: &[u8]) -> bool {
    let Some((parameters, bytes)) = input.split_first() else { return false };
    let bounds = match parameters & 0x30 {
        0 => Bounds { bytes_max: 120, fields_max: 3, target_bytes_max: 12 },
        _ => Bounds { bytes_max: 16_384, fields_max: 100, target_bytes_max: 8192 },
    };
    if parameters & 1 == 0 {
        same_however_cut(bytes, |bytes| {
            described(request(bytes, &bounds), |request| (request.bytes.len(), parts(request)))
        });
        let Ok(ParseStatus::Complete(first)) = request(bytes, &bounds) else { return false };
        let again = rewritten(&first);
        let Ok(ParseStatus::Complete(second)) = request(&again, &Bounds { bytes_max: 65_535, ..bounds }) else {
            panic!("{first:?} is not read again")
        };
        assert_eq!(second.bytes.len(), again.len());
        assert_eq!(parts(&first), parts(&second));
        whole(first.bytes, &first.fields);
    } else {
        let asked = match parameters >> 1 & 7 {
            0 => Method::Head,
            1 => Method::Connect,
            _ => Method::Get,
        };
        let described = |bytes: &[u8]| {
            described(response(bytes, &bounds, asked), |response| (response.bytes.len(), told(response)))
        };
        same_however_cut(bytes, described);
        let Ok(ParseStatus::Complete(response)) = response(bytes, &bounds, asked) else { return false };
        assert!((100..1000).contains(&response.status));
        whole(response.bytes, &response.fields);
    }
    true
}

/// The head that was read, as text.
fn described<T, D: core::fmt::Debug>(read: Result<ParseStatus<T>, BadHead>, parts: impl Fn(&T) -> D) -> String {
    match read {
        Ok(ParseStatus::Partial) => "partial".into(),
        Ok(ParseStatus::Complete(head)) => format!("{:?}", parts(&head)),
        Err(refusal) => format!("{refusal:?}"),
    }
}

/// All parts of a request but its bytes, as text.
fn parts(request: &Request<'_>) -> String {
    format!("{:?}", Request { bytes: b"", ..request.clone() })
}

/// All parts of a response but its bytes, as text.
fn told(response: &Response<'_>) -> String {
    format!("{:?}", Response { bytes: b"", ..response.clone() })
}

/// A verdict on a prefix holds for all that begins with it.
fn same_however_cut(bytes: &[u8], read: impl Fn(&[u8]) -> String) {
    if bytes.len() > CUT_MAX {
        return;
    }
    let whole = read(bytes);
    // By bisection to the shortest prefix that is decided: with many inputs, every length gets its turn.
    let mut undecided = 0..bytes.len();
    while !undecided.is_empty() {
        let length = undecided.start + undecided.len() / 2;
        let now = read(&bytes[..length]);
        if now == "partial" {
            undecided.start = length + 1;
        } else {
            assert_eq!(now, whole, "{length} of {bytes:?}");
            undecided.end = length;
        }
    }
}

/// The head ends where it must, and its fields are fields.
fn whole(bytes: &[u8], fields: &Fields<'_>) {
    assert_eq!(bytes.windows(4).position(|four| four == b"\r\n\r\n"), Some(bytes.len() - 4));
    assert!(fields.len() <= 100);
    for (name, value) in fields.iter() {
        assert!(
            !name.is_empty()
                && name.iter().all(|byte| byte.is_ascii_graphic() && !b"(),/:;<=>?@[\\]{}\"".contains(byte))
        );
        assert!(value.iter().all(|byte| *byte == b'\t' || (*byte >= 32 && *byte != 127)));
        assert!(!value.starts_with(b" ") && !value.ends_with(b"\t"));
        assert!(fields.find(&name.to_ascii_lowercase()).any(|found| found == value));
        fields.is_hop_by_hop(name);
    }
}

/// The head made anew of its parts.
fn rewritten(request: &Request<'_>) -> Vec<u8> {
    let version = format!("{:?}", request.version).replace("Http1", " HTTP/1.");
    let mut bytes = [request.method_bytes, b" ", request.target.whole, version.as_bytes(), b"\r\n"].concat();
    for (name, value) in request.fields.iter() {
        bytes.extend([name, b": ", value, b"\r\n"].concat());
    }
    bytes.extend(b"\r\n");
    bytes
}

/// A chunked body ends at the same byte however it is cut, and where a reader that looks for no errors has it end.
/// Returns whether it ends.
pub fn body(input: &[u8]) -> bool {
    let Some((piece, bytes)) = input.split_first() else { return false };
    let mut at_once = Chunks::default();
    let end = at_once.feed(bytes);

    let mut in_pieces = Chunks::default();
    let mut taken = 0;
    let cut = bytes.chunks(usize::from(*piece).max(1)).try_for_each(|piece| {
        assert!(in_pieces.data_left() == 0 || !in_pieces.is_done());
        taken += in_pieces.feed(piece)?;
        Ok(())
    });
    assert_eq!(cut.map(|()| taken), end);
    assert_eq!(in_pieces, at_once);

    let naive = naive_end(bytes);
    match end {
        Ok(end) if at_once.is_done() => assert_eq!(naive, Some(end)),
        Ok(end) => assert!(naive.is_none() && end == bytes.len()),
        Err(_) => {}
    }
    at_once.is_done()
}

/// The end of a chunked body, to a reader that believes everything.
fn naive_end(bytes: &[u8]) -> Option<usize> {
    let line_end = |at: usize| Some(at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")? + 2);
    let mut at = 0;
    loop {
        let next = line_end(at)?;
        let digits = bytes[at..next - 2].split(|byte| *byte == b';').next()?;
        let size = u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()?;
        at = next;
        if size == 0 {
            break;
        }
        at = at.checked_add(usize::try_from(size).ok()?)?.checked_add(2)?;
    }
    loop {
        let start = at;
        at = line_end(at)?;
        if at == start + 2 {
            return Some(at);
        }
    }
}
