//! Digests of files and of what a part is built from.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::ImageError;

/// SHA-256 of a file in lower-case hex.
pub(crate) fn of_file(path: &Path) -> Result<String, ImageError> {
    let mut file = File::open(path).map_err(ImageError::file("read", path))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1024 * 1024];
    loop {
        let count = file
            .read(&mut buffer)
            .map_err(ImageError::file("read", path))?;
        if count == 0 {
            return Ok(hex::encode(hash.finalize()));
        }
        hash.update(&buffer[..count]);
    }
}

/// SHA-256 over a list of inputs; two lists differ if any input does.
pub(crate) fn of_inputs<S: AsRef<str>>(inputs: &[S]) -> String {
    let mut hash = Sha256::new();
    for input in inputs {
        let input = input.as_ref();
        hash.update((input.len() as u64).to_be_bytes());
        hash.update(input);
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_told_apart_by_their_borders() {
        assert_ne!(of_inputs(&["ab", "c"]), of_inputs(&["a", "bc"]));
        assert_eq!(of_inputs(&["a"]).len(), 64);
    }

    #[test]
    fn a_file_has_the_known_digest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "abc").unwrap();
        let digest = of_file(&path).unwrap();
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
