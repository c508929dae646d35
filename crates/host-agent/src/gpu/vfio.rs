//! `vfio-inventory.txt`: what of this host's GPUs is given out whole.
//!
//! ```text
//! <count> <kind> <pci address> [<pci address> ...] [| key=value;key=value;...]
//! ```
//!
//! A line is an IOMMU group: `count` GPUs, and every function of the group, companions such as a
//! card's sound device included. What follows `|` was learned while the vendor's driver still had
//! the card.

use std::path::Path;

use super::pci::PciAddress;
use super::text::{self, InventoryError, Problem};

const FORM: &str = "<count> <kind> <pci address>... [| key=value;...]";
pub(super) const SCRIPT: &str = "qemu-vfio-bind.sh";

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// GPUs among the functions.
    pub count: u32,
    /// What they are called, lower-case.
    pub kind: String,
    /// Every function of the group.
    pub slots: Vec<PciAddress>,
    /// What is known of the GPU.
    pub facts: Option<Facts>,
}

/// What was learned of a GPU. Absent facts are empty or zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Its address, if it is not the first of the line.
    pub bus_id: Option<PciAddress>,
    /// The vendor's identifier.
    pub uuid: String,
    /// Marketing name.
    pub model: String,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Version of the host's driver.
    pub driver_version: String,
    /// Compute capability.
    pub compute_cap: String,
    /// Partitioning mode.
    pub mig_mode: String,
}

/// Reads the file; one that does not exist lists nothing.
///
/// # Errors
/// It cannot be read, or a line is wrong.
pub(super) fn read(path: &Path) -> Result<Vec<Group>, InventoryError> {
    text::parse(path, SCRIPT, |line, earlier: &[Group]| {
        let group = group(line)?;
        for slot in &group.slots {
            if earlier.iter().any(|other| other.slots.contains(slot)) {
                return Err(Problem::Twice(slot.to_string()));
            }
        }
        let uuid = group.facts.as_ref().map_or("", |facts| &facts.uuid);
        let known = |other: &Group| {
            let theirs = other.facts.as_ref().map_or("", |facts| &facts.uuid);
            theirs.eq_ignore_ascii_case(uuid)
        };
        if !uuid.is_empty() && earlier.iter().any(known) {
            return Err(Problem::Twice(uuid.to_owned()));
        }
        Ok(group)
    })
}

fn group(line: &str) -> Result<Group, Problem> {
    let (place, facts) = match line.split_once('|') {
        Some((place, facts)) => (place, Some(facts)),
        None => (line, None),
    };
    let words: Vec<&str> = place.split_whitespace().collect();
    let [count, kind, slots @ ..] = &words[..] else {
        return Err(Problem::Words { expected: FORM });
    };
    if slots.is_empty() {
        return Err(Problem::Words { expected: FORM });
    }
    let number: Option<u32> = count.parse().ok();
    let count = number
        .filter(|n| *n > 0)
        .ok_or_else(|| Problem::Count((*count).to_owned()))?;
    let mut parsed: Vec<PciAddress> = Vec::new();
    for slot in slots {
        let slot = slot.parse()?;
        if parsed.contains(&slot) {
            return Err(Problem::Twice(slot.to_string()));
        }
        parsed.push(slot);
    }
    let slots = parsed;
    if u32::try_from(slots.len()).is_ok_and(|slots| slots < count) {
        let slots = slots.len();
        return Err(Problem::Slots { count, slots });
    }
    Ok(Group {
        count,
        kind: kind.to_lowercase(),
        slots,
        facts: facts.and_then(parse_facts),
    })
}

/// `None` when it says nothing that is understood.
fn parse_facts(text: &str) -> Option<Facts> {
    let mut facts = Facts::default();
    for pair in text.split(';') {
        let Some((key, value)) = pair.split_once('=') else {
            continue;
        };
        let value = value.trim();
        match key.trim() {
            "bus_id" => facts.bus_id = value.parse().ok(),
            "uuid" => value.clone_into(&mut facts.uuid),
            "model" => value.clone_into(&mut facts.model),
            "memory_mb" => facts.memory_mb = value.parse().unwrap_or(0),
            "driver_version" => value.clone_into(&mut facts.driver_version),
            "compute_cap" => value.clone_into(&mut facts.compute_cap),
            "mig_mode" => value.clone_into(&mut facts.mig_mode),
            // A later writer's.
            _ => {}
        }
    }
    (facts != Facts::default()).then_some(facts)
}

#[cfg(test)]
mod tests {
    use super::super::pci::tests::address;
    use super::*;
    use proptest::prelude::*;

    fn read_text(text: impl AsRef<[u8]>) -> Result<Vec<Group>, InventoryError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    fn problem(text: &str) -> (usize, String) {
        match read_text(text) {
            Err(InventoryError::Line { line, problem, .. }) => (line, problem.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_of_every_form() {
        let text = "# made by hand\n\n\
            1 A100 0000:65:00.0 0000:65:00.1 | bus_id=00000000:65:00.0;uuid=GPU-1;model=NVIDIA A100;\
            memory_mb=40960;driver_version=550.1;compute_cap=8.0;mig_mode=Disabled;later=x\n\
            2 t4 3b:00.0 3b:00.1\n";
        let groups = read_text(text).unwrap();
        assert_eq!(
            (groups.len(), groups[0].count, groups[0].kind.as_str()),
            (2, 1, "a100")
        );
        let facts = groups[0].facts.clone().unwrap();
        assert_eq!((facts.uuid.as_str(), facts.memory_mb), ("GPU-1", 40960));
        assert_eq!(
            (facts.model.as_str(), facts.mig_mode.as_str()),
            ("NVIDIA A100", "Disabled")
        );
        assert_eq!(facts.bus_id, Some(groups[0].slots[0]));
        assert_eq!((groups[1].count, groups[1].facts.as_ref()), (2, None));
        assert_eq!(groups[1].slots[1].to_string(), "0000:3b:00.1");
        assert!(
            read(Path::new("/nowhere/vfio-inventory.txt"))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn wrong_lines_are_named_with_what_writes_them() {
        for (text, line, part) in [
            ("1 a100", 1, "expected <count>"),
            ("\n# x\none a100 65:00.0", 3, "\"one\" is not a number"),
            ("0 a100 65:00.0", 1, "\"0\" is not"),
            ("-1 a100 65:00.0", 1, "\"-1\" is not"),
            ("2 a100 65:00.0", 1, "2 GPUs cannot have 1 PCI functions"),
            ("1 a100 ../../etc", 1, "not a PCI address"),
            (
                "1 a 65:00.0\n1 b 65:00.0",
                2,
                "0000:65:00.0 was on an earlier line",
            ),
            ("1 a 65:00.0 65:00.0", 1, "0000:65:00.0 was"),
            ("1 a 65:00.0|uuid=G\n1 b 66:00.0|uuid=g", 2, "g was on"),
            ("1 a\u{1b}[1m 65:00.0", 1, "control characters"),
        ] {
            let (at, what) = problem(text);
            assert!(at == line && what.contains(part), "{text}: {at}: {what}");
        }
        let error = read_text("1 a100").unwrap_err().to_string();
        assert!(
            error.ends_with("write the file anew with qemu-vfio-bind.sh"),
            "{error}"
        );
    }

    #[test]
    fn files_that_are_none() {
        assert!(matches!(
            read_text([0xff, 0xfe]),
            Err(InventoryError::Read { .. })
        ));
        assert!(matches!(
            read_text(vec![b'#'; 2 << 20]),
            Err(InventoryError::Read { .. })
        ));
        assert!(matches!(
            read(Path::new("/")),
            Err(InventoryError::Read { .. })
        ));
    }

    proptest! {
        #[test]
        fn no_file_panics(text in "([0-9]{0,3} ?[a-z]{0,4} ?([0-9a-f]{2}:00\\.[0-7] ?){0,3}\\|?[a-z_=;0-9]{0,20}\n?){0,4}|\\PC*") {
            drop(read_text(text));
        }

        #[test]
        fn what_the_grammar_allows_is_read(
            slots in proptest::collection::btree_set(address(), 1..6),
            kind in "[A-Za-z0-9-]{1,12}",
            uuid in "GPU-[0-9a-f]{4}",
            model in "[A-Za-z0-9 -]{0,12}",
        ) {
            let words: Vec<String> = slots.iter().map(ToString::to_string).collect();
            let line = format!("{} {kind} {} | uuid={uuid};model={model}", slots.len(), words.join("  "));
            let groups = read_text(line).unwrap();
            prop_assert_eq!(groups[0].count as usize, slots.len());
            prop_assert_eq!(&groups[0].kind, &kind.to_lowercase());
            prop_assert_eq!(groups[0].slots.clone(), slots.into_iter().collect::<Vec<_>>());
            let facts = groups[0].facts.clone().unwrap();
            prop_assert_eq!((facts.uuid, facts.model), (uuid, model.trim().to_owned()));
        }
    }
}
