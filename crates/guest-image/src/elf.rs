//! The little that is asked of ELF files.

const HEADER_BYTES: usize = 64;
const INTERPRETER: u32 = 3;
const X86_64: u16 = 62;

/// Why a file is not the program it should be.
pub(crate) fn check_static_program(elf: &[u8]) -> Result<(), &'static str> {
    check_x86_64(elf)?;
    match program_headers(elf) {
        None => Err("is a damaged program"),
        Some(kinds) if kinds.contains(&INTERPRETER) => {
            Err("is linked dynamically and cannot run in an initramfs")
        }
        Some(_) => Ok(()),
    }
}

/// Whether this is a 64-bit little-endian ELF file for x86-64.
pub(crate) fn check_x86_64(elf: &[u8]) -> Result<(), &'static str> {
    if elf.len() < HEADER_BYTES || !elf.starts_with(b"\x7fELF\x02\x01") {
        return Err("is not a 64-bit ELF file");
    }
    if read_u16(elf, 18) == Some(X86_64) {
        Ok(())
    } else {
        Err("is not for x86-64")
    }
}

/// The kinds of all program headers, `None` if the file is cut short.
fn program_headers(elf: &[u8]) -> Option<Vec<u32>> {
    let offset = usize::try_from(u64::from_le_bytes(elf.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (read_u16(elf, 54)?, read_u16(elf, 56)?);
    (0..usize::from(count))
        .map(|index| {
            let at = offset.checked_add(index * usize::from(size))?;
            let kind = elf.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(kind.try_into().ok()?))
        })
        .collect()
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_dynamic_program_is_told_from_a_text() {
        let shell = std::fs::read("/bin/sh").unwrap();
        assert!(
            check_static_program(&shell)
                .unwrap_err()
                .contains("dynamically")
        );
        assert!(
            check_static_program(b"#!/bin/sh\n")
                .unwrap_err()
                .contains("not a 64-bit ELF")
        );
    }

    proptest! {
        #[test]
        fn damaged_files_do_not_panic(mut tail in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut elf = b"\x7fELF\x02\x01\0\0\0\0\0\0\0\0\0\0\x03\0\x3e\0".to_vec();
            elf.append(&mut tail);
            check_static_program(&elf).ok();
        }
    }
}
