//! The command that runs a build step in a guest, to see it fail.

use fuse_fusefile::Script;

/// A step as it runs when an environment boots: in the workspace, with `env`.
pub(crate) fn boot(script: &Script, index: usize, id: &str) -> Option<String> {
    command(script, index, id, script.has_env)
}

/// A step as `fuse build` runs it: without `env`.
pub(crate) fn build(script: &Script, index: usize, id: &str) -> Option<String> {
    command(script, index, id, false)
}

fn command(script: &Script, index: usize, id: &str, with_env: bool) -> Option<String> {
    let mut line = format!("cd {} && ", quote(&script.workspace));
    if with_env {
        line += "set -a && . /fuse/env && set +a && ";
    }
    line += script.fragments.get(index)?.trim_end();
    Some(format!(
        "fuse environment exec {id} --timeout 10m --shell {}",
        quote(&line)
    ))
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_by_hand() {
        let source =
            "version: 1\nenv: {A: {value: x}}\nbuild: [{run: \"echo 'it'\", workdir: w}]\n";
        let compiled = fuse_fusefile::check("F", source.as_bytes(), None)
            .compiled
            .unwrap();
        assert_eq!(
            boot(&compiled.script, 0, "fuse-a").unwrap(),
            r"fuse environment exec fuse-a --timeout 10m --shell 'cd '\''/workspace'\'' && set -a && . /fuse/env && set +a && (cd '\''w'\''; echo '\''it'\'')'"
        );
        assert_eq!(
            build(&compiled.script, 0, "fuse-a").unwrap(),
            r"fuse environment exec fuse-a --timeout 10m --shell 'cd '\''/workspace'\'' && (cd '\''w'\''; echo '\''it'\'')'"
        );
        assert_eq!(build(&compiled.script, 1, "fuse-a"), None);
    }
}
