//! Bytes to text: UTF-8, or UTF-16 when a byte-order mark says so.

use std::borrow::Cow;

use crate::diagnostic::Position;

/// The text of a file.
///
/// # Errors
/// The position of the first byte that is neither.
pub(crate) fn to_utf8(bytes: &[u8]) -> Result<Cow<'_, str>, Position> {
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        _ => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(error) => {
                let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
                Err(end_of(&String::from_utf8_lossy(valid)))
            }
        },
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Cow<'_, str>, Position> {
    let units = bytes.chunks(2).map(|pair| match pair {
        [a, b] => unit([*a, *b]),
        // A lone byte at the end: a lone surrogate, so that it is refused below.
        _ => 0xd800,
    });
    let mut text = String::with_capacity(bytes.len());
    for c in char::decode_utf16(units) {
        match c {
            Ok(c) => text.push(c),
            Err(_) => return Err(end_of(&text)),
        }
    }
    Ok(Cow::Owned(text))
}

/// The position right behind `text`.
fn end_of(text: &str) -> Position {
    let last = text.rsplit('\n').next().unwrap_or_default();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Position {
        line: count(text.matches('\n').count() + 1),
        column: count(last.chars().count() + 1),
        width: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        assert_eq!(to_utf8("vé".as_bytes()).unwrap(), "vé");
        assert_eq!(to_utf8(b"\xff\xfev\0\xe9\0").unwrap(), "vé");
        assert_eq!(to_utf8(b"\xfe\xff\0v\0\xe9").unwrap(), "vé");
        let at = to_utf8(b"ok\n\xc3\xa9\xff").unwrap_err();
        assert_eq!((at.line, at.column), (2, 2));
        assert!(to_utf8(b"\xff\xfev\0x").is_err());
    }
}
