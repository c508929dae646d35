//! JSON exactly as the format fixes it.
//!
//! Two writers over serde: [`compact`] for the manifest, which escapes `<`, `>` and `&` so that the bytes
//! are safe inside HTML, and [`pretty`] for what people read, which does not. Both escape U+2028 and
//! U+2029. Keys come out in the order of the types.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// Compact JSON with HTML-safe strings.
pub(crate) fn compact<T: Serialize>(value: &T) -> String {
    write(
        value,
        Escaping {
            inner: CompactFormatter,
            html: true,
        },
    )
}

/// JSON with two spaces of indent.
pub(crate) fn pretty<T: Serialize>(value: &T) -> String {
    write(
        value,
        Escaping {
            inner: PrettyFormatter::new(),
            html: false,
        },
    )
}

fn write<T: Serialize, F: Formatter>(value: &T, formatter: F) -> String {
    let mut out = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, formatter));
    // The types written here are plain data with string keys into memory: neither can fail.
    debug_assert!(written.is_ok(), "plain data serialises: {written:?}");
    String::from_utf8_lossy(&out).into_owned()
}

/// Escapes what serde leaves literal, and passes the layout on to `inner`.
struct Escaping<F> {
    inner: F,
    html: bool,
}

impl<F> Escaping<F> {
    fn escape(&self, c: char) -> Option<&'static [u8]> {
        match c {
            '\u{2028}' => Some(b"\\u2028"),
            '\u{2029}' => Some(b"\\u2029"),
            '<' if self.html => Some(b"\\u003c"),
            '>' if self.html => Some(b"\\u003e"),
            '&' if self.html => Some(b"\\u0026"),
            _ => None,
        }
    }
}

impl<F: Formatter> Formatter for Escaping<F> {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, c, escape)) = rest
            .char_indices()
            .find_map(|(at, c)| Some((at, c, self.escape(c)?)))
        {
            writer.write_all(&rest.as_bytes()[..at])?;
            writer.write_all(escape)?;
            rest = &rest[at + c.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.inner.begin_array_value(w, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.inner.begin_object_key(w, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_is_escaped_in_the_compact_form_only() {
        let text = "a<b>&\u{2028}\u{2029}é\n\u{1}\"\\";
        assert_eq!(
            compact(&text),
            r#""a\u003cb\u003e\u0026\u2028\u2029é\n\u0001\"\\""#
        );
        assert_eq!(pretty(&text), r#""a<b>&\u2028\u2029é\n\u0001\"\\""#);
    }

    #[test]
    fn layout_is_two_spaces_and_empty_containers_stay_on_one_line() {
        let value = serde_json::json!({"b": {}, "a": [1, {"c": []}]});
        assert_eq!(
            pretty(&value),
            "{\n  \"b\": {},\n  \"a\": [\n    1,\n    {\n      \"c\": []\n    }\n  ]\n}"
        );
    }
}
