//! `files` of a create request: paths, modes and decoded content.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Violation, json::null_default};

/// Upper bound of the decoded files of one request (bytes, summed).
pub const MAX_FILES_BYTES: usize = 524_288;

/// A value under `files`: the content alone, or content with a mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a base64 string or an object with content and mode"
)]
pub enum FileBody {
    /// Standard base64.
    Content(String),
    /// Standard base64 and an octal mode.
    WithMode {
        /// Standard base64.
        content: String,
        /// `^0?[0-7]{3}$`; empty = the guest's default.
        #[serde(
            default,
            deserialize_with = "null_default",
            skip_serializing_if = "String::is_empty"
        )]
        mode: String,
    },
}

/// A file for the guest, decoded.
#[derive(Clone, PartialEq, Eq)]
pub struct GuestFile {
    /// Absolute and clean, not under `/fuse`.
    pub path: String,
    /// Raw bytes.
    pub content: Vec<u8>,
    /// Octal mode as sent.
    pub mode: Option<String>,
}

impl std::fmt::Debug for GuestFile {
    /// Callers put keys and configuration into files: the content is not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuestFile")
            .field("path", &self.path)
            .field("bytes", &self.content.len())
            .field("mode", &self.mode)
            .finish()
    }
}

/// Checks and decodes every file, in sorted path order.
pub(crate) fn check_files(files: &BTreeMap<String, FileBody>) -> Result<Vec<GuestFile>, Violation> {
    let mut decoded = Vec::with_capacity(files.len());
    let mut total = 0usize;
    for (path, body) in files {
        check_path(path)?;
        let (text, mode) = match body {
            FileBody::Content(text) => (text, ""),
            FileBody::WithMode { content, mode } => (content, mode.as_str()),
        };
        let content = decode_base64(text).ok_or_else(|| {
            Violation::Invalid(format!("files[{path}]: content is not valid base64"))
        })?;
        if !mode.is_empty() && !is_mode(mode) {
            return Err(Violation::Invalid(format!(
                "files[{path}]: mode must be three octal digits, like 644 or 0755"
            )));
        }
        total = total.saturating_add(content.len());
        decoded.push(GuestFile {
            path: path.clone(),
            content,
            mode: (!mode.is_empty()).then(|| mode.to_owned()),
        });
    }
    if total > MAX_FILES_BYTES {
        return Err(Violation::TooLarge(format!(
            "files: {total} decoded bytes exceed the limit of {MAX_FILES_BYTES} bytes"
        )));
    }
    Ok(decoded)
}

fn check_path(path: &str) -> Result<(), Violation> {
    let bad = |why: &str| Err(Violation::Invalid(format!("files: path {path:?} {why}")));
    if path.contains(['\0', '\n']) {
        return bad("must not contain NUL or newline");
    }
    let Some(relative) = path.strip_prefix('/') else {
        return bad("must be absolute");
    };
    if relative
        .split('/')
        .any(|part| matches!(part, "" | "." | ".."))
    {
        return bad("must be clean (no ., .., double or trailing slash)");
    }
    if path == "/fuse" || path.starts_with("/fuse/") {
        return bad("is reserved: /fuse belongs to the guest agent");
    }
    Ok(())
}

fn is_mode(text: &str) -> bool {
    let digits = if text.len() == 4 {
        text.strip_prefix('0')
    } else {
        Some(text)
    };
    digits.is_some_and(|d| d.len() == 3 && d.bytes().all(|b| (b'0'..=b'7').contains(&b)))
}

/// Standard padded base64; carriage returns and line feeds are ignored, other blanks are not.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    if text.contains(['\r', '\n']) {
        let joined: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        return BASE64_STANDARD.decode(joined).ok();
    }
    BASE64_STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(path: &str, body: FileBody) -> Result<Vec<GuestFile>, Violation> {
        check_files(&[(path.to_owned(), body)].into())
    }

    fn content(text: &str) -> FileBody {
        FileBody::Content(text.into())
    }

    #[test]
    fn paths() {
        for ok in ["/a", "/a/b.txt", "/fused/x", "/fuse-backup/x", "/a b/ü"] {
            assert!(one(ok, content("")).is_ok(), "{ok}");
        }
        for bad in [
            "", "a", "/", "/a/", "//a", "/a//b", "/./a", "/a/..", "/fuse", "/fuse/x", "/a\nb",
            "/a\0b",
        ] {
            assert!(
                matches!(one(bad, content("")), Err(Violation::Invalid(_))),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn base64_ignores_line_ends_only() {
        assert_eq!(decode_base64("aGVs\r\nbG8=\n").unwrap(), b"hello");
        for bad in ["aGVs bG8=", "aGVsbG8", "aGVsbG8=\t", "-_8="] {
            assert!(decode_base64(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn modes() {
        let with = |mode: &str| {
            one(
                "/a",
                FileBody::WithMode {
                    content: String::new(),
                    mode: mode.into(),
                },
            )
        };
        for ok in ["644", "0755", "000"] {
            assert_eq!(with(ok).unwrap()[0].mode.as_deref(), Some(ok));
        }
        assert_eq!(with("").unwrap()[0].mode, None);
        for bad in ["64", "1755", "00755", "888", "rwx"] {
            assert!(with(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_sum_is_bounded() {
        let half = BASE64_STANDARD.encode(vec![0u8; MAX_FILES_BYTES / 2]);
        let mut files: BTreeMap<String, FileBody> =
            [("/a".into(), content(&half)), ("/b".into(), content(&half))].into();
        assert!(check_files(&files).is_ok());
        files.insert("/c".into(), content("AA=="));
        assert!(matches!(check_files(&files), Err(Violation::TooLarge(_))));
    }

    #[test]
    fn both_forms_decode() {
        let files: BTreeMap<String, FileBody> =
            serde_json::from_str(r#"{"/a":"aGk=","/b":{"content":"aGk=","mode":"0600"}}"#).unwrap();
        let files = check_files(&files).unwrap();
        assert_eq!(files[0].content, b"hi");
        assert_eq!(files[1].mode.as_deref(), Some("0600"));
        assert!(!format!("{files:?}").contains("hi"));
    }

    proptest! {
        #[test]
        fn an_accepted_path_never_reaches_the_reserved_tree(path in "[/.fuse a]{0,24}") {
            if one(&path, content("")).is_ok() {
                prop_assert!(path.starts_with('/') && !path.ends_with('/'));
                prop_assert!(path.split('/').nth(1) != Some("fuse"));
                prop_assert!(path.split('/').skip(1).all(|p| !matches!(p, "" | "." | "..")));
            }
        }
    }
}
