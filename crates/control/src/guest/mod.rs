//! What the control plane writes into a guest: profile files, compose document,
//! environment file, credentials. Same input gives the same bytes (credentials
//! excepted, which are random by nature). And how to ask a guest agent for them.

mod compose;
mod credentials;
mod env_file;
mod files;
mod surface;

pub(crate) use credentials::{CredentialError, Credentials, RENEW_AFTER};
pub(crate) use files::{CREDENTIAL_PATHS, credential_files, profile_files};
pub(crate) use files::{FileSources, MANIFEST_PATH, SECRETS_PATH, TLS_CERT_PATH, TLS_KEY_PATH};
pub(crate) use surface::{Verdict, ask_surface};
