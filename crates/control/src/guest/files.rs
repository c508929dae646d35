//! The files of a new environment (lifecycle 4), as one upload.

use std::collections::BTreeMap;

use fuse_wire_api::{Desktop, GuestFile, Healthcheck, Manifest};
use fuse_wire_host::FileUpload;

use super::{Credentials, compose, env_file};

/// The manifest as sent.
pub(crate) const MANIFEST_PATH: &str = "/fuse/manifest.json";
/// One flat JSON object of strings.
pub(crate) const SECRETS_PATH: &str = "/fuse/secrets.json";
/// Certificate of the guest agent.
pub(crate) const TLS_CERT_PATH: &str = "/fuse/tls/cert.pem";
/// Its key.
pub(crate) const TLS_KEY_PATH: &str = "/fuse/tls/key.pem";
const TOKEN_PATH: &str = "/fuse/auth-token";
/// The files of a set of credentials.
pub(crate) const CREDENTIAL_PATHS: [&str; 3] = [TOKEN_PATH, TLS_CERT_PATH, TLS_KEY_PATH];
const COMPOSE_PATH: &str = "/fuse/compose.yaml";
const ENV_PATH: &str = "/fuse/env";
const HEALTHCHECK_PATH: &str = "/fuse/healthcheck.json";
const DESKTOP_PATH: &str = "/fuse/desktop.json";

/// What the files are made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSources<'a> {
    /// The manifest's bytes as sent.
    pub(crate) manifest_bytes: &'a [u8],
    /// The same, read.
    pub(crate) manifest: &'a Manifest,
    /// Values by name.
    pub(crate) secrets: &'a BTreeMap<String, String>,
    /// `None` without an encryption key.
    pub(crate) credentials: Option<&'a Credentials>,
    /// Probe of the workload.
    pub(crate) healthcheck: Option<&'a Healthcheck>,
    /// Screen.
    pub(crate) desktop: Option<&'a Desktop>,
    /// The caller's own files; validation keeps them out of `/fuse`.
    pub(crate) files: &'a [GuestFile],
}

/// Every file, the caller's first so that a profile path wins a collision.
pub(crate) fn profile_files(sources: FileSources<'_>) -> Vec<FileUpload> {
    let mut uploads: Vec<FileUpload> = sources
        .files
        .iter()
        .map(|file| FileUpload {
            path: file.path.clone(),
            content: file.content.clone(),
            mode: file.mode.clone(),
        })
        .collect();
    uploads.push(upload(MANIFEST_PATH, sources.manifest_bytes.to_vec()));
    uploads.push(upload(SECRETS_PATH, json(sources.secrets)));
    if let Some(credentials) = sources.credentials {
        uploads.extend(credential_files(credentials));
    }
    if let Some(text) = compose::render(&sources.manifest.services, sources.secrets) {
        uploads.push(upload(COMPOSE_PATH, text.into_bytes()));
    }
    if let Some(text) = env_file::render(&sources.manifest.machine.env, sources.secrets) {
        uploads.push(upload(ENV_PATH, text.into_bytes()));
    }
    if let Some(healthcheck) = sources.healthcheck {
        uploads.push(upload(HEALTHCHECK_PATH, json(healthcheck)));
    }
    if let Some(desktop) = sources.desktop {
        uploads.push(upload(DESKTOP_PATH, json(desktop)));
    }
    uploads
}

/// The three credential files alone.
pub(crate) fn credential_files(credentials: &Credentials) -> [FileUpload; 3] {
    [
        upload(TOKEN_PATH, credentials.token.expose().clone().into_bytes()),
        upload(
            TLS_CERT_PATH,
            credentials.certificate_pem.clone().into_bytes(),
        ),
        upload(
            TLS_KEY_PATH,
            credentials.key_pem.expose().clone().into_bytes(),
        ),
    ]
}

fn upload(path: &str, content: Vec<u8>) -> FileUpload {
    FileUpload {
        path: path.to_owned(),
        content,
        mode: None,
    }
}

/// Maps of strings and plain structs always serialise.
fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(uploads: &[FileUpload]) -> Vec<&str> {
        uploads.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn a_bare_environment_has_manifest_and_secrets() {
        let (manifest, secrets) = (Manifest::default(), BTreeMap::new());
        let uploads = profile_files(FileSources {
            manifest_bytes: Manifest::BUILT_IN.as_bytes(),
            manifest: &manifest,
            secrets: &secrets,
            credentials: None,
            healthcheck: None,
            desktop: None,
            files: &[],
        });
        assert_eq!(paths(&uploads), [MANIFEST_PATH, SECRETS_PATH]);
        assert_eq!(uploads[0].content, Manifest::BUILT_IN.as_bytes());
        assert_eq!(uploads[1].content, b"{}");
    }

    #[test]
    fn everything_given_is_written() {
        let text = r#"{"machine":{"env":{"A":{"secret":"S"}}},"services":{"x":{"image":"i"}}}"#;
        let manifest = Manifest::parse(text.as_bytes()).unwrap();
        let secrets = [("S".to_owned(), "v".to_owned())].into();
        let credentials = Credentials::mint("fuse-a").unwrap();
        let healthcheck = Healthcheck {
            exec: vec!["true".into()],
            ..Healthcheck::default()
        };
        let desktop = Desktop {
            width: 800,
            height: 600,
            wm: String::new(),
        };
        let files = [GuestFile {
            path: "/w/x".into(),
            content: b"hi".to_vec(),
            mode: None,
        }];
        let uploads = profile_files(FileSources {
            manifest_bytes: text.as_bytes(),
            manifest: &manifest,
            secrets: &secrets,
            credentials: Some(&credentials),
            healthcheck: Some(&healthcheck),
            desktop: Some(&desktop),
            files: &files,
        });
        assert_eq!(
            paths(&uploads),
            [
                "/w/x",
                MANIFEST_PATH,
                SECRETS_PATH,
                TOKEN_PATH,
                TLS_CERT_PATH,
                TLS_KEY_PATH,
                COMPOSE_PATH,
                ENV_PATH,
                HEALTHCHECK_PATH,
                DESKTOP_PATH
            ]
        );
        let content = |path: &str| {
            let file = uploads.iter().find(|file| file.path == path).unwrap();
            String::from_utf8(file.content.clone()).unwrap()
        };
        assert_eq!(content(SECRETS_PATH), r#"{"S":"v"}"#);
        assert_eq!(content(TOKEN_PATH).len(), 64);
        assert_eq!(content(HEALTHCHECK_PATH), r#"{"exec":["true"]}"#);
        assert_eq!(content(DESKTOP_PATH), r#"{"width":800,"height":600}"#);
    }
}
