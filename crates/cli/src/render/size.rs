//! Sizes, the way every command prints them.

const UNITS: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];

/// `-` for nothing, whole bytes below 1024, else one decimal and a unit of base 1024.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0 => return "-".to_owned(),
        1..1024 => return format!("{bytes} B"),
        _ => {}
    }
    // In tenths of the unit, so that nothing is lost to floating point.
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "";
    for name in UNITS {
        tenths = (tenths + 512) / 1024;
        unit = name;
        if tenths < 10_240 {
            break;
        }
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (size, text) in [
            (0, "-"),
            (1, "1 B"),
            (1023, "1023 B"),
            (1024, "1.0 KB"),
            (1536, "1.5 KB"),
            (1_572_864, "1.5 MB"),
            (5 << 30, "5.0 GB"),
            (u64::MAX, "16.0 EB"),
        ] {
            assert_eq!(bytes(size), text, "{size}");
        }
    }
}
