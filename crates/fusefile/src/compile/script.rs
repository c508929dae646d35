//! The startup script and its relatives, byte for byte.
//!
//! A script is executed as one argument of `sh -lc`, by whatever shell the image has, so it sticks to POSIX.
//! Everything of the author's that is not meant as shell text goes through [`quote`]. Exit status 90 means
//! that a build step failed, whatever its own status was.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::grammar::guest_path;
use crate::model::Step;

/// Characters of base64 on a line.
const BASE64_LINE: usize = 76;

const BUILD_BEGIN: &str = "\
# fuse: build phase (a failure here exits 90)
trap '[ $? -eq 0 ] || exit 90' EXIT
";
const BUILD_END: &str = "trap - EXIT\n";
const RUN_BEGIN: &str = "# fuse: run phase\n";

/// The parts that scripts are put together from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Directory that everything starts in.
    pub workspace: String,
    /// Whether the file has an `env`, which boot scripts load.
    pub has_env: bool,
    /// The `files` block.
    pub files: Vec<FileEntry>,
    /// Shell text of the steps, which is also what layer keys hash.
    pub fragments: Vec<String>,
    /// Rendered `run`.
    pub run: Option<String>,
}

/// One file that the script writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// As written: absolute, or relative to the workspace.
    pub path: String,
    /// As written; empty = the shell's default.
    pub mode: String,
    /// Contents.
    pub body: Vec<u8>,
}

impl Script {
    /// The script of a cold boot; empty when there is nothing to do.
    #[must_use]
    pub fn startup(&self) -> String {
        self.startup_from(0)
    }

    /// The script of a boot from a layer that holds the first `steps` steps.
    #[must_use]
    pub fn startup_from(&self, steps: usize) -> String {
        let fragments = self.fragments.get(steps..).unwrap_or_default();
        if fragments.is_empty() {
            return self.run_only();
        }
        let mut out = self.boot();
        out.push_str(BUILD_BEGIN);
        push_lines(&mut out, fragments);
        out.push_str(BUILD_END);
        if let Some(run) = &self.run {
            out.push_str(RUN_BEGIN);
            push_line(&mut out, run);
        }
        out
    }

    /// Where the steps from `steps` on begin in [`Self::startup_from`]'s text, and where the line behind
    /// the last one does; empty when the script holds none of them.
    #[must_use]
    pub fn step_offsets(&self, steps: usize) -> Vec<usize> {
        let fragments = self.fragments.get(steps..).unwrap_or_default();
        if fragments.is_empty() {
            return Vec::new();
        }
        let mut at = self.boot().len() + BUILD_BEGIN.len();
        let mut offsets = vec![at];
        for fragment in fragments {
            at += fragment.len() + 1;
            offsets.push(at);
        }
        offsets
    }

    /// The script of a boot whose steps have all run before.
    #[must_use]
    pub fn run_only(&self) -> String {
        if self.run.is_none() && self.files.is_empty() {
            return String::new();
        }
        let mut out = self.boot();
        if let Some(run) = &self.run {
            push_line(&mut out, run);
        }
        out
    }

    /// The script of an uncached build: no env, no markers.
    #[must_use]
    pub fn build(&self) -> String {
        if self.fragments.is_empty() {
            String::new()
        } else {
            self.range(0, usize::MAX, true)
        }
    }

    /// Steps `from..to` of a cached build, bounds clamped, with the files block if asked.
    #[must_use]
    pub fn range(&self, from: usize, to: usize, with_files: bool) -> String {
        let to = to.min(self.fragments.len());
        let fragments = self.fragments.get(from..to).unwrap_or_default();
        if fragments.is_empty() && !with_files {
            return String::new();
        }
        let mut out = self.prelude();
        if with_files {
            self.push_files(&mut out);
        }
        push_lines(&mut out, fragments);
        out
    }

    fn prelude(&self) -> String {
        let workspace = quote(&self.workspace);
        // dash has no pipefail; a subshell finds out without ending the script.
        format!(
            "set -eu\n\
             if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi\n\
             mkdir -p {workspace}\n\
             cd {workspace}\n"
        )
    }

    fn boot(&self) -> String {
        let mut out = self.prelude();
        if self.has_env {
            out.push_str("set -a\n. /fuse/env\nset +a\n");
        }
        self.push_files(&mut out);
        out
    }

    fn push_files(&self, out: &mut String) {
        for (i, file) in self.files.iter().enumerate() {
            let cleaned = guest_path::clean(&file.path);
            let dir = guest_path::parent(&cleaned);
            if dir != "." && dir != "/" {
                push_line(out, &format!("mkdir -p {}", quote(dir)));
            }
            let path = quote(&file.path);
            push_line(out, &format!("base64 -d > {path} <<'FUSE_FILE_EOF_{i}'"));
            push_base64(out, &file.body);
            push_line(out, &format!("FUSE_FILE_EOF_{i}"));
            if !file.mode.is_empty() {
                push_line(out, &format!("chmod {} {path}", file.mode));
            }
        }
    }
}

/// The shell text of a step.
pub(super) fn fragment(step: &Step) -> String {
    if step.workdir.is_empty() {
        step.run.value.clone()
    } else {
        format!("(cd {}; {})", quote(&step.workdir), step.run.value)
    }
}

/// `text` as one word of shell, always in single quotes.
pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn push_lines(out: &mut String, lines: &[String]) {
    for line in lines {
        push_line(out, line);
    }
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

fn push_base64(out: &mut String, body: &[u8]) {
    // 57 bytes become 76 characters, so lines can be encoded one by one.
    for chunk in body.chunks(BASE64_LINE / 4 * 3) {
        push_line(out, &STANDARD.encode(chunk));
    }
}
