//! What a startup script writes: both streams in the order they come, apart by phase, secret
//! values taken out, the last part of each kept.

use fuse_model::{LogTail, TaskLog, TaskOutput};

use fuse_redact::{MAX_HELD, Pattern, Redactor};

/// Most of each phase, and of each stream, that is kept (bytes).
const KEPT: usize = 256 * 1024;
/// How the line begins at which a compiled script leaves its build phase.
const BUILD_END: &str = "trap - EXIT";

/// Which stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Stdout,
    Stderr,
}

/// Puts a mark on both streams at the end of the build phase, on the line that ends it, so that no
/// line changes its number. Answers with the script and the mark; none for a script without phases.
pub(super) fn mark_phases(script: &str, nonce: &str) -> (String, Option<Vec<u8>>) {
    let at = script
        .match_indices(BUILD_END)
        .map(|(at, _)| at)
        .find(|at| {
            let begins = *at == 0 || script.as_bytes().get(at - 1) == Some(&b'\n');
            let rest = &script[at + BUILD_END.len()..];
            begins && (rest.is_empty() || rest.starts_with('\n'))
        });
    let Some(at) = at else {
        return (script.to_owned(), None);
    };
    let end = at + BUILD_END.len();
    let print = format!("printf '\\036%s\\036' {nonce}");
    let marked = format!(
        "{}; {{ {print}; {print} >&2; }} 2>&2 || :{}",
        &script[..end],
        &script[end..]
    );
    (marked, Some(format!("\u{1e}{nonce}\u{1e}").into_bytes()))
}

/// The last part of a text.
#[derive(Debug, Default)]
struct Tail {
    text: String,
    written: u64,
}

impl Tail {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.written += text.len() as u64;
        // Now and then, not for every piece.
        if self.text.len() > 2 * KEPT {
            self.text = self.kept().to_owned();
        }
    }

    fn kept(&self) -> &str {
        let mut start = self.text.len().saturating_sub(KEPT);
        while !self.text.is_char_boundary(start) {
            start += 1;
        }
        &self.text[start..]
    }

    fn log(&self) -> LogTail {
        LogTail {
            text: self.kept().to_owned(),
            written: self.written,
        }
    }
}

/// A stream: what is not settled yet, and the phase that it is in.
#[derive(Debug)]
struct Stream {
    held: Vec<u8>,
    builds: bool,
    tail: Tail,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Output<'a> {
    redactor: &'a Redactor,
    mark: Option<Vec<u8>>,
    streams: [Stream; 2],
    build: Tail,
    run: Tail,
    changed: bool,
}

impl<'a> Output<'a> {
    /// `mark` is what stands between the phases; without one all is the run phase's.
    pub(super) fn new(redactor: &'a Redactor, mark: Option<Vec<u8>>) -> Self {
        let stream = || Stream {
            held: Vec::new(),
            builds: mark.is_some(),
            tail: Tail::default(),
        };
        Self {
            redactor,
            streams: [stream(), stream()],
            mark,
            build: Tail::default(),
            run: Tail::default(),
            changed: false,
        }
    }

    /// Takes what came on a stream.
    pub(super) fn push(&mut self, source: Source, bytes: &[u8]) {
        let stream = &mut self.streams[source as usize];
        stream.held.extend_from_slice(bytes);
        let mark = self.mark.as_deref().filter(|_| stream.builds);
        if let Some(mark) = mark
            && let Some(at) = Pattern::of(mark).find(&stream.held)
        {
            let rest = stream.held.split_off(at + mark.len());
            stream.held.truncate(at);
            self.settle(source, true);
            let stream = &mut self.streams[source as usize];
            stream.builds = false;
            stream.held = rest;
        }
        self.settle(source, false);
    }

    /// Everything was written.
    pub(super) fn finish(&mut self) {
        self.settle(Source::Stdout, true);
        self.settle(Source::Stderr, true);
    }

    fn settle(&mut self, source: Source, all: bool) {
        let stream = &mut self.streams[source as usize];
        let mut settled = stream.held.len();
        if !all && settled < MAX_HELD {
            settled = self.redactor.settled(&stream.held);
            if let Some(mark) = self.mark.as_deref().filter(|_| stream.builds) {
                settled = settled.min(stream.held.len() - Pattern::of(mark).begun(&stream.held));
            }
        }
        let bytes: Vec<u8> = stream.held.drain(..settled).collect();
        if bytes.is_empty() {
            return;
        }
        let text = self.redactor.clean(&String::from_utf8_lossy(&bytes));
        stream.tail.push(&text);
        let phase = if stream.builds {
            &mut self.build
        } else {
            &mut self.run
        };
        phase.push(&text);
        self.changed = true;
    }

    /// Whether something came since the last time that this was asked.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// By phase.
    pub(super) fn log(&self) -> TaskLog {
        TaskLog {
            build: self.build.log(),
            run: self.run.log(),
            ended: false,
        }
    }

    /// The end of standard error.
    pub(super) fn stderr(&self) -> &str {
        self.streams[1].tail.kept()
    }

    /// How much has come on standard error.
    pub(super) fn stderr_written(&self) -> u64 {
        self.streams[1].tail.written
    }

    /// The end of what has come on standard error after its first `written` bytes.
    pub(super) fn stderr_since(&self, written: u64) -> &str {
        let new = self.stderr_written().saturating_sub(written);
        let kept = self.stderr();
        let mut start = kept
            .len()
            .saturating_sub(usize::try_from(new).unwrap_or(usize::MAX));
        while !kept.is_char_boundary(start) {
            start += 1;
        }
        &kept[start..]
    }

    /// By stream.
    pub(super) fn output(&self, exit_code: i32) -> TaskOutput {
        TaskOutput {
            exit_code,
            stdout: self.streams[0].tail.kept().to_owned(),
            stderr: self.stderr().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONCE: &str = "0123abcd";

    fn mark() -> Vec<u8> {
        format!("\u{1e}{NONCE}\u{1e}").into_bytes()
    }

    #[test]
    fn what_came_later_is_told_from_what_came_before() {
        let redactor = Redactor::default();
        let mut output = Output::new(&redactor, None);
        output.push(Source::Stderr, b"before\n");
        output.finish();
        let written = output.stderr_written();
        assert_eq!(output.stderr_since(written), "");
        output.push(Source::Stdout, b"elsewhere\n");
        output.push(Source::Stderr, "caf\u{e9}\n".as_bytes());
        output.finish();
        assert_eq!(output.stderr_since(written), "caf\u{e9}\n");
        assert_eq!(output.stderr_since(0), "before\ncaf\u{e9}\n");
    }

    #[test]
    fn phases_are_told_apart_on_both_streams() {
        let redactor = Redactor::default();
        let mut output = Output::new(&redactor, Some(mark()));
        output.push(Source::Stdout, b"built\n");
        output.push(Source::Stderr, b"warned\n");
        output.push(Source::Stdout, b"\x1e0123");
        output.push(Source::Stderr, &mark());
        output.push(Source::Stderr, b"runs\n");
        output.push(Source::Stdout, b"abcd\x1ehello\n");
        output.finish();
        let log = output.log();
        assert_eq!(log.build.text, "built\nwarned\n");
        assert_eq!(log.run.text, "runs\nhello\n");
        let whole = output.output(0);
        assert_eq!(
            (whole.stdout.as_str(), whole.stderr.as_str()),
            ("built\nhello\n", "warned\nruns\n")
        );
    }

    #[test]
    fn a_script_without_phases_only_runs() {
        let (script, mark) = mark_phases("echo hi\n", NONCE);
        assert_eq!((script.as_str(), mark.as_ref()), ("echo hi\n", None));
        let redactor = Redactor::default();
        let mut output = Output::new(&redactor, mark);
        output.push(Source::Stdout, b"hi\n");
        assert!(output.take_changed() && !output.take_changed());
        let log = output.log();
        assert_eq!((log.build.written, log.run.text.as_str()), (0, "hi\n"));
    }

    #[test]
    fn a_marked_script_does_the_same_and_says_where_it_is() {
        let script = "set -eu\ntrap '[ $? -eq 0 ] || exit 90' EXIT\necho build; echo oops >&2\n\
            trap - EXIT\necho run\nexit 3\n";
        let (marked, mark) = mark_phases(script, NONCE);
        assert_eq!(marked.lines().count(), script.lines().count());
        let ran = std::process::Command::new("sh")
            .args(["-c", &marked])
            .output()
            .unwrap();
        assert_eq!(ran.status.code(), Some(3));
        let redactor = Redactor::default();
        let mut output = Output::new(&redactor, mark);
        output.push(Source::Stdout, &ran.stdout);
        output.push(Source::Stderr, &ran.stderr);
        output.finish();
        let log = output.log();
        assert_eq!(log.build.text, "build\noops\n");
        assert_eq!(log.run.text, "run\n");
    }

    #[test]
    fn what_is_kept_is_bounded_and_counted() {
        let redactor = Redactor::default();
        let mut output = Output::new(&redactor, None);
        let line = "é".repeat(1000);
        for _ in 0..600 {
            output.push(Source::Stdout, line.as_bytes());
        }
        let run = output.log().run;
        assert_eq!(run.written, 600 * 2000);
        assert!(run.text.len() <= KEPT && run.text.len() > KEPT - 4);
        assert!(output.run.text.len() <= 2 * KEPT);
    }

    proptest! {
        /// However the bytes are cut into pieces, the text is the same and no value is in it.
        #[test]
        fn pieces_do_not_matter(
            cuts in prop::collection::vec(0usize..60, 0..6),
            before in "[a-h]{0,9}",
            after in "[a-h]{0,9}",
        ) {
            let redactor = Redactor::new(["abcdabcdef", "hunter2 hunter2"]);
            let text = format!("{before}abcdabcdef{after}é hunter2 hunter2 hunter2");
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|at| *at < text.len()).collect();
            cuts.sort_unstable();
            let mut output = Output::new(&redactor, None);
            let mut at = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                output.push(Source::Stdout, &text.as_bytes()[at..cut]);
                at = cut;
            }
            output.finish();
            prop_assert!(!output.stderr().contains("abcd"));
            prop_assert_eq!(output.output(0).stdout, redactor.clean(&text));
        }
    }
}
