//! The work of decoding grows with the text and not faster, whatever the text is.

use super::decode;

/// Texts of a size that grows with `n`, of kinds that invite more than linear work.
fn families(n: usize) -> Vec<(&'static str, String)> {
    let many = |f: &dyn Fn(usize) -> String| (0..n).map(f).collect::<String>();
    vec![
        ("unknown keys", many(&|i| format!("k{i}: 1\n"))),
        ("duplicate keys", many(&|_| "name: x\n".to_owned())),
        (
            "steps",
            format!("build:\n{}", many(&|i| format!("- echo {i}\n"))),
        ),
        (
            "services",
            format!(
                "services:\n{}",
                many(&|i| format!("  s{i}: {{image: x, ports: [1]}}\n"))
            ),
        ),
        (
            "env",
            format!("env:\n{}", many(&|i| format!("  K{i}: {{value: x}}\n"))),
        ),
        (
            "aliases",
            format!("name: &n x\nsecrets:\n{}", many(&|_| "- *n\n".to_owned())),
        ),
        (
            "aliases of all before",
            format!(
                "secrets: &s0 [x]\n{}",
                many(&|i| format!("k{i}: &s{} [*s{i}, *s{i}]\n", i + 1))
            ),
        ),
        (
            "a chain of merges",
            format!(
                "services:\n  s0: &s0 {{image: x}}\n{}",
                many(&|i| format!("  s{}: &s{} {{<<: *s{i}}}\n", i + 1, i + 1))
            ),
        ),
        (
            "one large mapping merged often",
            format!(
                "services:\n  a: &a {{{}}}\n{}",
                many(&|i| format!("k{i}: 1, ")),
                many(&|i| format!("  s{i}: {{<<: *a}}\n"))
            ),
        ),
        ("open brackets", "[".repeat(n)),
        (
            "a long name",
            format!(
                "services: {{ {}: {{{}}} }}",
                "x".repeat(n),
                many(&|i| format!("k{i}: 1, "))
            ),
        ),
    ]
}

#[test]
fn work_and_output_grow_with_the_text() {
    // Per byte of text: values looked at, and bytes of problems. What aliases may add is a constant, reached
    // by both sizes, so it is taken off.
    let alias_work = 2 * crate::yaml::MAX_ALIAS_COST / 16;
    for n in [500, 4_000] {
        for (family, text) in families(n) {
            let outcome = decode("F", &text);
            assert!(
                outcome.work <= text.len() + alias_work,
                "{family} {n}: {}",
                outcome.work
            );
            let output: usize = outcome.problems.iter().map(|p| p.to_string().len()).sum();
            assert!(output <= 400_000, "{family} {n}: {output}");
        }
    }
}

#[test]
fn the_number_of_values_is_exactly_linear_without_aliases() {
    for (family, text) in families(100) {
        if text.contains('*') {
            continue;
        }
        let (_, larger) = families(1_000)
            .into_iter()
            .find(|(name, _)| *name == family)
            .unwrap();
        let (small, large) = (decode("F", &text).work, decode("F", &larger).work);
        assert!(large <= 10 * small + 20, "{family}: {small} then {large}");
    }
}
