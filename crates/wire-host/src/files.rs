//! `POST /v1/vm/{id}/upload`: one file, or many in one call.
//!
//! The wire has two forms, `{path, content_b64, mode?}` and `{files: [...]}`. Reading takes either;
//! writing uses the plain form for a single file, which every agent understands.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One file for the guest.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUpload {
    /// Absolute path in the guest.
    pub path: String,
    /// Content, base64 on the wire.
    #[serde(rename = "content_b64", with = "crate::encoding")]
    pub content: Vec<u8>,
    /// Permission bits as an octal string; the guest's default is 0644. Ignored below `/fuse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl std::fmt::Debug for FileUpload {
    /// Leaves the content out: uploads carry secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileUpload")
            .field("path", &self.path)
            .field("bytes", &self.content.len())
            .field("mode", &self.mode)
            .finish()
    }
}

/// Files to write into a guest, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRequest {
    /// At least one file.
    pub files: Vec<FileUpload>,
}

#[derive(Deserialize)]
struct Wire {
    path: Option<String>,
    content_b64: Option<String>,
    mode: Option<String>,
    files: Option<Vec<WireFile>>,
}

#[derive(Deserialize)]
struct WireFile {
    path: Option<String>,
    content_b64: Option<String>,
    mode: Option<String>,
}

impl WireFile {
    fn parse(self) -> Result<FileUpload, String> {
        let path = self
            .path
            .filter(|p| !p.is_empty())
            .ok_or("missing field: path")?;
        let content = self.content_b64.ok_or("missing field: content_b64")?;
        let content = crate::encoding::decode(&content)
            .map_err(|e| format!("content_b64 of {path} is not base64: {e}"))?;
        Ok(FileUpload {
            path,
            content,
            mode: self.mode,
        })
    }
}

impl<'de> Deserialize<'de> for UploadRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let single = WireFile {
            path: wire.path,
            content_b64: wire.content_b64,
            mode: wire.mode,
        };
        let files = match wire.files {
            Some(_) if single.path.is_some() => {
                return Err(D::Error::custom("give either path or files, not both"));
            }
            Some(files) if files.is_empty() => return Err(D::Error::custom("files is empty")),
            Some(files) => files,
            None => vec![single],
        };
        let files: Result<Vec<_>, String> = files.into_iter().map(WireFile::parse).collect();
        Ok(Self {
            files: files.map_err(D::Error::custom)?,
        })
    }
}

impl Serialize for UploadRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Many<'a> {
            files: &'a [FileUpload],
        }
        match self.files.as_slice() {
            [one] => one.serialize(serializer),
            files => Many { files }.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<UploadRequest, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn both_forms() {
        let one = parse(r#"{"path":"/a","content_b64":"aGk=","mode":"0600"}"#).unwrap();
        assert_eq!(one.files[0].content, b"hi");
        let many =
            parse(r#"{"files":[{"path":"/a","content_b64":""},{"path":"/b","content_b64":""}]}"#);
        assert_eq!(many.unwrap().files.len(), 2);
    }

    #[test]
    fn a_missing_field_is_named() {
        for (body, want) in [
            (r"{}", "path"),
            (r#"{"path":"/a"}"#, "content_b64"),
            (r#"{"content_b64":""}"#, "path"),
            (r#"{"files":[]}"#, "files is empty"),
            (r#"{"files":[{"path":"/a"}]}"#, "content_b64"),
            (r#"{"path":"/a","content_b64":"*"}"#, "not base64"),
            (r#"{"path":"/a","content_b64":"","files":[]}"#, "either"),
        ] {
            let error = parse(body).unwrap_err();
            assert!(error.contains(want), "{body}: {error}");
        }
    }

    #[test]
    fn debug_hides_content() {
        let file = FileUpload {
            path: "/s".into(),
            content: b"s3cret".to_vec(),
            mode: None,
        };
        assert!(!format!("{file:?}").contains("s3cret"));
        assert!(!format!("{file:?}").contains("115"));
    }

    proptest! {
        #[test]
        fn files_survive_the_wire(files in proptest::collection::vec(
            ("/[a-z]{1,8}", any::<Vec<u8>>(), proptest::option::of("0[0-7]{3}")), 1..4)) {
            let sent = UploadRequest { files: files.into_iter()
                .map(|(path, content, mode)| FileUpload { path, content, mode }).collect() };
            let text = serde_json::to_string(&sent).unwrap();
            prop_assert_eq!(parse(&text).unwrap(), sent);
        }
    }
}
