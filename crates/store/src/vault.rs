//! Secrets at rest: AES-256-GCM under a named key.
//!
//! A sealed blob is `01 | key id (4) | nonce (12) | ciphertext | tag (16)`. The
//! key id tells which key opens it, so that keys can be rotated; the kind and
//! id of the record are associated data, so that a blob copied to another
//! record does not open. Blobs of the older form `nonce | ciphertext | tag`,
//! without key id and associated data, still open.
//!
//! Called by the environment and host parts of the store only.

use std::fmt;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use fuse_model::Redacted;
use rand::Rng as _;
use sha2::{Digest, Sha256};
use thiserror::Error;

const FORMAT: u8 = 1;
const KEY_ID_LEN: usize = 4;
const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;
const HEADER_LEN: usize = 1 + KEY_ID_LEN;

/// Why a secret could not be sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VaultError {
    /// There is no key.
    #[error("it is encrypted, and TOKEN_ENCRYPTION_KEY is not set")]
    NoKey,
    /// No key at hand opens it.
    #[error("it does not open with the current TOKEN_ENCRYPTION_KEY; was the key changed?")]
    WrongKey,
    /// The cipher refused.
    #[error("it could not be encrypted")]
    Seal,
}

/// What opened a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenedWith {
    /// The key that seals, in the form that is written today.
    Current,
    /// The previous key, or an older form.
    Older,
}

struct NamedKey {
    id: [u8; KEY_ID_LEN],
    cipher: Aes256Gcm,
}

impl NamedKey {
    fn new(key: &[u8; 32]) -> Self {
        let digest = Sha256::new()
            .chain_update(b"fuse-key-id/v1\n")
            .chain_update(key)
            .finalize();
        let mut id = [0; KEY_ID_LEN];
        id.copy_from_slice(&digest[..KEY_ID_LEN]);
        Self {
            id,
            cipher: Aes256Gcm::new(&Key::<Aes256Gcm>::from(*key)),
        }
    }
}

/// The keys of this process: one to seal with, and older ones to open with.
#[derive(Default)]
pub struct Vault {
    current: Option<NamedKey>,
    previous: Option<NamedKey>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault")
            .field("current", &self.current.is_some())
            .field("previous", &self.previous.is_some())
            .finish()
    }
}

impl Vault {
    /// A vault without keys: nothing is sealed, and nothing sealed opens.
    pub fn none() -> Self {
        Self::default()
    }

    /// A vault that seals with `current` and opens with either key.
    pub fn new(current: &Redacted<[u8; 32]>, previous: Option<&Redacted<[u8; 32]>>) -> Self {
        Self {
            current: Some(NamedKey::new(current.expose())),
            previous: previous.map(|key| NamedKey::new(key.expose())),
        }
    }

    /// Whether there is a key to seal with.
    pub const fn has_key(&self) -> bool {
        self.current.is_some()
    }

    /// Seals `plain` for the record `id` of kind `entity`.
    ///
    /// # Errors
    /// There is no key, or the cipher refuses.
    pub fn seal(&self, entity: &str, id: &str, plain: &[u8]) -> Result<Vec<u8>, VaultError> {
        let key = self.current.as_ref().ok_or(VaultError::NoKey)?;
        let mut nonce = [0u8; NONCE_LEN];
        rand::rng().fill_bytes(&mut nonce);
        let aad = associated_data(entity, id);
        let payload = Payload {
            msg: plain,
            aad: &aad,
        };
        let sealed = key
            .cipher
            .encrypt(&Nonce::from(nonce), payload)
            .map_err(|_| VaultError::Seal)?;
        let mut blob = Vec::with_capacity(HEADER_LEN + NONCE_LEN + sealed.len());
        blob.push(FORMAT);
        blob.extend_from_slice(&key.id);
        blob.extend_from_slice(&nonce);
        blob.extend_from_slice(&sealed);
        Ok(blob)
    }

    /// Opens a blob that was sealed for the record `id` of kind `entity`.
    ///
    /// # Errors
    /// No key at hand opens it.
    pub fn open(&self, entity: &str, id: &str, blob: &[u8]) -> Result<Vec<u8>, VaultError> {
        self.open_and_tell(entity, id, blob).map(|(plain, _)| plain)
    }

    /// [`Vault::open`], and whether sealing it anew would change anything.
    pub(crate) fn open_and_tell(
        &self,
        entity: &str,
        id: &str,
        blob: &[u8],
    ) -> Result<(Vec<u8>, OpenedWith), VaultError> {
        let Some(current) = &self.current else {
            return Err(VaultError::NoKey);
        };
        let aad = associated_data(entity, id);
        let keys = || std::iter::once(current).chain(&self.previous);
        if blob.first() == Some(&FORMAT) && blob.len() >= HEADER_LEN {
            let (header, body) = blob.split_at(HEADER_LEN);
            for key in keys().filter(|key| key.id == header[1..]) {
                if let Some(plain) = decrypt(key, body, &aad) {
                    let with = if key.id == current.id {
                        OpenedWith::Current
                    } else {
                        OpenedWith::Older
                    };
                    return Ok((plain, with));
                }
            }
        }
        keys()
            .find_map(|key| decrypt(key, blob, &[]))
            .map(|plain| (plain, OpenedWith::Older))
            .ok_or(VaultError::WrongKey)
    }
}

fn decrypt(key: &NamedKey, body: &[u8], aad: &[u8]) -> Option<Vec<u8>> {
    if body.len() < NONCE_LEN + TAG_LEN {
        return None;
    }
    let (nonce, msg) = body.split_at(NONCE_LEN);
    let nonce: [u8; NONCE_LEN] = nonce.try_into().ok()?;
    key.cipher
        .decrypt(&Nonce::from(nonce), Payload { msg, aad })
        .ok()
}

fn associated_data(entity: &str, id: &str) -> Vec<u8> {
    format!("{entity}\n{id}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Redacted<[u8; 32]> {
        Redacted::new([byte; 32])
    }

    #[test]
    fn opens_what_it_sealed_for_the_same_record_only() {
        let vault = Vault::new(&key(1), None);
        let blob = vault.seal("vm-token", "fuse-a", b"secret").expect("seals");
        assert_eq!(
            vault.open("vm-token", "fuse-a", &blob).expect("opens"),
            b"secret"
        );
        assert_eq!(
            vault.open("vm-token", "fuse-b", &blob),
            Err(VaultError::WrongKey)
        );
        assert_eq!(
            vault.open("host-token", "fuse-a", &blob),
            Err(VaultError::WrongKey)
        );
        assert!(!blob.windows(6).any(|part| part == b"secret"));
    }

    #[test]
    fn a_rotated_key_opens_old_blobs_and_seals_new_ones() {
        let old = Vault::new(&key(1), None)
            .seal("e", "i", b"x")
            .expect("seals");
        let rotated = Vault::new(&key(2), Some(&key(1)));
        assert_eq!(rotated.open("e", "i", &old).expect("opens"), b"x");
        let new = rotated.seal("e", "i", b"x").expect("seals");
        assert_eq!(
            Vault::new(&key(2), None)
                .open("e", "i", &new)
                .expect("opens"),
            b"x"
        );
        assert_eq!(
            Vault::new(&key(3), None).open("e", "i", &new),
            Err(VaultError::WrongKey)
        );
        assert_eq!(Vault::none().open("e", "i", &new), Err(VaultError::NoKey));
        assert_eq!(Vault::none().seal("e", "i", b"x"), Err(VaultError::NoKey));
    }

    #[test]
    fn blobs_without_a_header_open_too() {
        let named = NamedKey::new(&[1; 32]);
        let nonce = [7u8; NONCE_LEN];
        let mut blob = nonce.to_vec();
        blob.extend(
            named
                .cipher
                .encrypt(&Nonce::from(nonce), &b"old"[..])
                .expect("encrypts"),
        );
        assert_eq!(
            Vault::new(&key(1), None)
                .open("e", "i", &blob)
                .expect("opens"),
            b"old"
        );
    }

    #[test]
    fn damage_is_noticed() {
        let vault = Vault::new(&key(1), None);
        let blob = vault.seal("e", "i", b"secret").expect("seals");
        for at in 0..blob.len() {
            let mut bad = blob.clone();
            bad[at] ^= 1;
            assert_eq!(
                vault.open("e", "i", &bad),
                Err(VaultError::WrongKey),
                "byte {at}"
            );
        }
        for len in 0..blob.len() {
            assert!(vault.open("e", "i", &blob[..len]).is_err(), "cut to {len}");
        }
    }
}
