//! Starts a program without copying this process first.
//!
//! `fork` makes every page of the guest agent copy-on-write, and each one it
//! touches afterwards costs a fault: about a hundred per command, which was
//! most of what the agent itself spent on one. Here the child borrows the
//! parent's memory until it runs the program, as in `posix_spawn`, which cannot
//! make it join a control group.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;

use rustix::fs::Access;
use rustix::io::Errno;
use rustix::process::Pid;

use super::ChildSetup;

/// The child calls a handful of system calls; this is several times what they need.
const STACK_BYTES: usize = 32 * 1024;

/// Signals the guest agent handles or ignores. A program starts with their defaults.
const CHANGED_SIGNALS: [c_int; 5] = [
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGCHLD,
];

/// A program that is ready to run.
#[derive(Debug)]
pub(crate) struct Program {
    /// Files to try in turn, as a shell does with `PATH`.
    pub(crate) files: Vec<CString>,
    /// Arguments, the program's name first.
    pub(crate) args: Vec<CString>,
    /// `NAME=value` each.
    pub(crate) env: Vec<CString>,
    /// Directory it starts in.
    pub(crate) cwd: CString,
    /// Standard input, output and error.
    pub(crate) stdio: [OwnedFd; 3],
    /// Where and how it runs.
    pub(crate) setup: ChildSetup,
}

impl Program {
    /// Starts it in a session of its own. Blocks until it runs or could not be run.
    ///
    /// # Errors
    /// There can be no further process, or none of the files can be run.
    pub(crate) fn start(&self) -> io::Result<Pid> {
        // One of the standard three would be overwritten by another.
        if self
            .stdio
            .iter()
            .any(|fd| fd.as_raw_fd() <= libc::STDERR_FILENO)
        {
            return Err(Errno::BADF.into());
        }
        let args = pointers(&self.args);
        let env = pointers(&self.env);
        // `sh FILE ARGS...`, for a script that does not name its interpreter.
        let shell = c"/bin/sh".as_ptr();
        let mut script: Vec<*const c_char> = vec![shell, ptr::null()];
        script.extend(args.iter().skip(1));
        if args.len() < 2 {
            script.push(ptr::null());
        }
        let mut plan = Plan {
            program: self,
            args: &args,
            env: &env,
            script,
            error: None,
        };
        let mut stack = vec![MaybeUninit::<u8>::uninit(); STACK_BYTES];
        let _signals = SignalsBlocked::new();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the stack grows down from its end, which is aligned below, and
        // stays allocated until `clone` returns: with CLONE_VFORK that is when the
        // child has run a program or ended. Until then this thread stands still,
        // so the child has `plan` to itself; it follows the rules of `child`.
        let pid = unsafe {
            let top = stack
                .as_mut_ptr()
                .add(STACK_BYTES)
                .map_addr(|end| end & !15);
            libc::clone(child, top.cast(), flags, ptr::from_mut(&mut plan).cast())
        };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        match (plan.error, Pid::from_raw(pid)) {
            (None, Some(pid)) => Ok(pid),
            (error, _) => Err(error.unwrap_or(Errno::SRCH).into()),
        }
    }
}

/// What the child reads, and the one thing it writes.
#[derive(Debug)]
struct Plan<'a> {
    program: &'a Program,
    args: &'a [*const c_char],
    env: &'a [*const c_char],
    script: Vec<*const c_char>,
    error: Option<Errno>,
}

impl Plan<'_> {
    /// Never returns when a program runs. In the child: system calls only.
    fn carry_out(&mut self) -> Errno {
        match self.prepare() {
            Ok(()) => self.execute(),
            Err(errno) => errno,
        }
    }

    fn prepare(&self) -> Result<(), Errno> {
        rustix::process::setsid()?;
        let standard = [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];
        for (fd, standard) in self.program.stdio.iter().zip(standard) {
            // SAFETY: takes no pointer; the child has its own table of descriptors.
            if unsafe { libc::dup2(fd.as_raw_fd(), standard) } < 0 {
                return Err(last_errno());
            }
        }
        self.program.setup.apply()?;
        rustix::process::chdir(self.program.cwd.as_c_str())?;
        default_signals();
        Ok(())
    }

    fn execute(&mut self) -> Errno {
        let mut refused = Errno::NOENT;
        let search = self.program.files.len() > 1;
        for file in &self.program.files {
            // Looking costs a tenth of a failing `execve`.
            if search && rustix::fs::access(file.as_c_str(), Access::EXISTS).is_err() {
                continue;
            }
            // SAFETY: arguments and environment are arrays of strings that end
            // with a null pointer; all of them outlive the call.
            unsafe { libc::execve(file.as_ptr(), self.args.as_ptr(), self.env.as_ptr()) };
            match last_errno() {
                Errno::NOENT | Errno::NOTDIR if search => {}
                Errno::ACCESS => refused = Errno::ACCESS,
                Errno::NOEXEC => {
                    self.script[1] = file.as_ptr();
                    // SAFETY: as above.
                    unsafe {
                        libc::execve(self.script[0], self.script.as_ptr(), self.env.as_ptr())
                    };
                    return Errno::NOEXEC;
                }
                errno => return errno,
            }
        }
        refused
    }
}

/// Entry of the child. It shares memory with the other threads of the parent,
/// which go on running, and the stack frames of the one that stands still: it
/// allocates nothing, takes no lock, cannot panic and does not return into them.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: `start` passes a plan that it does not touch until this ends.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    plan.error = Some(plan.carry_out());
    127
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let ends = std::iter::once(ptr::null());
    strings.iter().map(|s| s.as_ptr()).chain(ends).collect()
}

fn last_errno() -> Errno {
    // SAFETY: the location is this thread's own; the child uses it while the
    // thread it borrowed it from stands still.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// A handler must not run in the child, on memory that is not its own.
fn default_signals() {
    for signal in CHANGED_SIGNALS {
        // SAFETY: takes no pointer; the child has its own table of handlers.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut none = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` fills the set before it is read; no old set is asked for.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Holds back all signals of this thread, and of a child until it asks for them.
#[derive(Debug)]
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `sigfillset` fills the one set, `pthread_sigmask` the other.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: restores a set that the kernel gave out.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(texts: &[&str]) -> Vec<CString> {
        texts.iter().map(|t| CString::new(*t).unwrap()).collect()
    }

    fn program(files: &[&str], args: &[&str]) -> (Program, std::fs::File) {
        let cloexec = rustix::pipe::PipeFlags::CLOEXEC;
        let (reader, writer) = rustix::pipe::pipe_with(cloexec).unwrap();
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        let program = Program {
            files: strings(files),
            args: strings(args),
            env: strings(&["A=1", "B=two words"]),
            cwd: c"/usr".into(),
            stdio: [null(), writer, null()],
            setup: ChildSetup::default(),
        };
        (program, reader.into())
    }

    fn output(files: &[&str], args: &[&str]) -> io::Result<String> {
        let (program, reader) = program(files, args);
        // Not collected here: a test process has one reaper, which belongs to other tests.
        program.start()?;
        drop(program);
        io::read_to_string(reader)
    }

    #[test]
    fn a_program_gets_what_it_was_given_and_nothing_else() {
        let script = r#"echo "$0 $1"; pwd; env | grep -v ^_ | grep -v ^PWD | sort"#;
        let text = output(&["/bin/sh"], &["name", "-c", script, "zero", "one"]).unwrap();
        assert_eq!(text, "zero one\n/usr\nA=1\nB=two words\n");
        let masks = output(
            &["/bin/grep"],
            &["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"],
        );
        let masks = masks.unwrap();
        let mask = |name| {
            let line = masks.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        assert_eq!(mask("SigBlk:"), 0);
        // The Rust runtime ignores it, which programs must not inherit.
        assert_eq!(mask("SigIgn:") & (1 << (libc::SIGPIPE - 1)), 0);
        let session = output(
            &["/bin/sh"],
            &[
                "sh",
                "-c",
                "read -r _ _ _ _ g s _ </proc/$$/stat; echo $(($$ == g)) $(($$ == s))",
            ],
        );
        assert_eq!(session.unwrap(), "1 1\n");
    }

    #[test]
    fn files_are_tried_in_turn() {
        let text = output(
            &["/nowhere/echo", "/etc/passwd/echo", "/bin/echo"],
            &["echo", "x"],
        );
        assert_eq!(text.unwrap(), "x\n");
        let kind = |files: &[&str]| output(files, &["x"]).unwrap_err().kind();
        assert_eq!(kind(&["/nowhere/a", "/nowhere/b"]), io::ErrorKind::NotFound);
        assert_eq!(
            kind(&["/etc/passwd", "/nowhere/b"]),
            io::ErrorKind::PermissionDenied
        );
        assert_eq!(kind(&["/etc/passwd/x"]), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn a_script_without_an_interpreter_runs_under_the_shell() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        std::fs::write(&file, "echo \"$# $1 $2\"\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(
            output(&[file], &["script", "a b", "c"]).unwrap(),
            "2 a b c\n"
        );
        assert_eq!(output(&[file], &["script"]).unwrap(), "0  \n");
    }
}
