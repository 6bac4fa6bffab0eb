//! The supervisor of a process tree, `osctl reaper`, with real processes and without a companion.

use crate::trials;
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{IoSlice, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

trials![
    a_service_ends_with_all_its_descendants,
    a_command_reports_its_end_before_the_end_of_its_background_processes,
    all_processes_end_with_the_companion,
    a_request_to_end_reaches_a_process_that_ignores_sigterm,
    a_process_that_exits_in_time_keeps_its_exit_code,
    a_signal_reaches_processes_in_other_groups,
    a_process_dies_with_its_supervisor,
    a_stopped_supervisor_continues_when_it_is_killed,
    a_program_that_does_not_exist_is_reported,
    a_process_gets_its_variables_folder_and_limit,
    a_shell_has_its_terminal_which_stays_open,
    a_restored_process_takes_the_place_of_its_program,
    a_child_that_exists_already_is_supervised,
];

const WAIT: Duration = Duration::from_secs(20);

/// A supervisor, and the output of its processes.
struct Supervisor {
    process: Child,
    stream: UnixStream,
    output: UnixStream,
}

/// The options of a start besides its kind and its arguments.
#[derive(Default)]
struct Options<'a> {
    pid_file: Option<&'a Path>,
    variables: &'a [&'a str],
    max_open_files: &'a str,
    terminal: Option<OwnedFd>,
    folder: Option<&'a Path>,
}

impl Supervisor {
    /// A supervisor whose process runs this shell script.
    fn run(kind: &str, script: &str) -> Self {
        Self::start(kind, &["/bin/sh", "-c", script], Options::default())
    }

    fn start(kind: &str, args: &[&str], options: Options<'_>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osctl"));
        command.arg("reaper").process_group(0);
        let (supervisor, end) = Self::spawn(command);
        let null = File::open("/dev/null").unwrap();
        let folder = File::open(options.folder.unwrap_or(Path::new("/"))).unwrap();
        let ends = match &options.terminal {
            Some(terminal) => [terminal.as_fd(); 3],
            None => [null.as_fd(), end.as_fd(), end.as_fd()],
        };
        let pid_file = options.pid_file.map(|file| file.to_str().unwrap());
        let count = args.len().to_string();
        let head = [
            kind,
            pid_file.unwrap_or_default(),
            options.max_open_files,
            args[0],
            &count,
        ];
        let parts = head.iter().chain(args).chain(options.variables);
        let mut file = tempfile::tempfile().unwrap();
        for part in parts {
            let length = u32::try_from(part.len()).unwrap();
            file.write_all(&length.to_le_bytes()).unwrap();
            file.write_all(part.as_bytes()).unwrap();
        }
        file.rewind().unwrap();
        let [stdin, stdout, stderr] = ends;
        supervisor.send_start([stdin, stdout, stderr, folder.as_fd(), file.as_fd()]);
        supervisor
    }

    /// Starts the command with a socket as its stdin. Also returns the write end of the output.
    fn spawn(mut command: Command) -> (Self, OwnedFd) {
        let (stream, theirs) = UnixStream::pair().unwrap();
        let (output, end) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        output.set_read_timeout(Some(WAIT)).unwrap();
        let process = command
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(OwnedFd::from(end.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let supervisor = Self {
            process,
            stream,
            output,
        };
        (supervisor, end.into())
    }

    fn send_start(&self, descriptors: [BorrowedFd<'_>; 5]) {
        let descriptors = descriptors.map(|end| end.as_raw_fd());
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let frame = frame(b'S', 0);
        let (socket, parts) = (self.stream.as_raw_fd(), [IoSlice::new(&frame)]);
        let sent = sendmsg::<()>(socket, &parts, &rights, MsgFlags::empty(), None);
        assert_eq!(sent, Ok(frame.len()));
    }

    fn send(&mut self, kind: u8, number: i32) {
        self.stream.write_all(&frame(kind, number)).unwrap();
    }

    fn kill_supervisor(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }

    /// The next event: its kind and its number.
    fn event(&mut self) -> (char, i32) {
        let mut frame = [0; 5];
        self.stream.read_exact(&mut frame).unwrap();
        let [kind, number @ ..] = frame;
        (char::from(kind), i32::from_le_bytes(number))
    }

    /// The next event, which must report a process.
    fn started(&mut self) -> i32 {
        let (kind, pid) = self.event();
        assert_eq!(kind, 'S');
        pid
    }

    /// Waits until the supervisor has ended, without another event.
    fn wait_closed(&mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }

    /// Waits for a line of output.
    fn line(&mut self) -> String {
        read_line(&mut self.output)
    }

    /// Waits until no process has the output open.
    fn wait_silent(&mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn frame(kind: u8, number: i32) -> [u8; 5] {
    let mut frame = [kind; 5];
    frame[1..].copy_from_slice(&number.to_le_bytes());
    frame
}

fn read_line(from: &mut impl Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        from.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

fn a_service_ends_with_all_its_descendants() {
    let script = "setsid sleep 1000 & (sleep 1000 &) ; exit 3";
    let mut service = Supervisor::run("service", script);
    service.started();
    assert_eq!(service.event(), ('E', 3));
    service.wait_closed();
    assert_eq!(service.wait_silent(), "");
}

fn a_command_reports_its_end_before_the_end_of_its_background_processes() {
    let mut command = Supervisor::run("command", "setsid sleep 1000 & exit 5");
    command.started();
    assert_eq!(command.event(), ('L', 5));
    command.send(b'K', 0);
    assert_eq!(command.event(), ('E', 137));
    command.wait_closed();
    command.wait_silent();

    let mut command = Supervisor::run("command", "exit 6");
    command.started();
    assert_eq!(command.event(), ('E', 6));
    command.wait_closed();

    // The last background process ends without a request.
    let mut command = Supervisor::run("command", "cat /dev/null & sleep 0.1 & exit 0");
    command.started();
    assert_eq!(command.event(), ('L', 0));
    command.wait_closed();
}

fn all_processes_end_with_the_companion() {
    for kind in ["command", "service"] {
        let script = "trap '' TERM HUP; setsid sleep 1000 & echo ready; wait";
        let mut tree = Supervisor::run(kind, script);
        assert_eq!(tree.line(), "ready");
        tree.stream.shutdown(std::net::Shutdown::Both).unwrap();
        tree.wait_silent();
    }
}

fn a_request_to_end_reaches_a_process_that_ignores_sigterm() {
    let script = "trap '' TERM; echo ready; sleep 1000 & wait; wait";
    let mut service = Supervisor::run("service", script);
    service.started();
    assert_eq!(service.line(), "ready");
    service.send(b'D', 200);
    assert_eq!(service.event(), ('E', 137));
    service.wait_closed();
    service.wait_silent();
}

fn a_process_that_exits_in_time_keeps_its_exit_code() {
    let script = "trap 'exit 7' TERM; sleep 1000 & echo ready; wait";
    let mut service = Supervisor::run("service", script);
    service.started();
    assert_eq!(service.line(), "ready");
    service.send(b'D', 60_000);
    assert_eq!(service.event(), ('E', 7));
    service.wait_closed();
    service.wait_silent();
}

fn a_signal_reaches_processes_in_other_groups() {
    let script = "setsid sh -c 'trap \"exit 0\" TERM; echo ready; while :; do sleep 0.01; done' & trap : TERM; wait; wait; exit 4";
    let mut command = Supervisor::run("command", script);
    command.started();
    assert_eq!(command.line(), "ready");
    command.send(b'G', Signal::SIGTERM as i32);
    assert_eq!(command.event(), ('E', 4));
    command.wait_closed();
}

fn a_process_dies_with_its_supervisor() {
    for kind in ["command", "service"] {
        let mut tree = Supervisor::start(kind, &["sleep", "1000"], Options::default());
        tree.started();
        tree.kill_supervisor(Signal::SIGKILL);
        tree.wait_silent();
    }
}

fn a_stopped_supervisor_continues_when_it_is_killed() {
    let mut service = Supervisor::start("service", &["sleep", "1000"], Options::default());
    service.started();
    service.kill_supervisor(Signal::SIGSTOP);
    service.send(b'K', 0);
    service.kill_supervisor(Signal::SIGCONT);
    assert_eq!(service.event(), ('E', 137));
    service.wait_closed();
}

fn a_program_that_does_not_exist_is_reported() {
    let program = ["/no/such/program"];
    let mut service = Supervisor::start("service", &program, Options::default());
    assert_eq!(service.event(), ('F', nix::libc::ENOENT));
    service.wait_closed();
}

fn a_process_gets_its_variables_folder_and_limit() {
    let options = Options {
        variables: &["A", "first", "A", "a=b\nc"],
        max_open_files: "77",
        folder: Some(Path::new("/usr/bin")),
        ..Options::default()
    };
    let script = "echo \"$A\"; pwd; ulimit -n; echo ${HOME-no home}";
    let mut command = Supervisor::start("service", &["/bin/sh", "-c", script], options);
    assert_eq!(command.wait_silent(), "a=b\nc\n/usr/bin\n77\nno home\n");
}

fn a_shell_has_its_terminal_which_stays_open() {
    let pty = openpty(None, None).unwrap();
    let options = Options {
        terminal: Some(pty.slave),
        ..Options::default()
    };
    // No process but the supervisor has the terminal open after the exit of the shell.
    let script = "echo hello >/dev/tty; trap '' HUP; setsid sleep 1000 </dev/null >/dev/null 2>&1 & exec sleep 1000";
    let mut shell = Supervisor::start("terminal", &["/bin/sh", "-c", script], options);
    let pid = shell.started();
    let mut master = File::from(pty.master);
    assert_eq!(read_line(&mut master), "hello");
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    assert_eq!(shell.event(), ('E', 137));
    shell.wait_closed();
    let end = master.read(&mut [0]).map_err(|error| error.raw_os_error());
    assert_eq!(end, Err(Some(nix::libc::EIO)));
}

fn a_restored_process_takes_the_place_of_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let restore = |script: &str| {
        let script = format!("{script}; echo $! >'{}'; exit 0", file.display());
        let options = Options {
            pid_file: Some(&file),
            ..Options::default()
        };
        Supervisor::start("restore", &["/bin/sh", "-c", &script], options)
    };
    let mut restored = restore("sleep 1000 & true");
    let pid = restored.started();
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    restored.send(b'D', 60_000);
    assert_eq!(restored.event(), ('E', 128 + Signal::SIGTERM as i32));
    restored.wait_closed();
    restored.wait_silent();

    let mut failed = restore("sleep 1000 & exit 9");
    assert_eq!(failed.event(), ('E', 9));
    failed.wait_closed();
    failed.wait_silent();
}

fn a_child_that_exists_already_is_supervised() {
    let mut command = Command::new("/bin/sh");
    let binary = env!("CARGO_BIN_EXE_osctl");
    // The child starts a process when it gets a signal, which the supervisor sends when it supervises the child.
    let child =
        "trap \"setsid sleep 1000 & exit 8\" TERM; echo ready >&2; while :; do sleep 0.01; done";
    let script = format!("sh -c '{child}' & exec '{binary}' reaper --adopt $!");
    command.args(["-c", &script]);
    let (mut supervisor, end) = Supervisor::spawn(command);
    drop(end);
    assert_eq!(supervisor.line(), "ready");
    supervisor.send(b'G', Signal::SIGTERM as i32);
    assert_eq!(supervisor.event(), ('E', 8));
    supervisor.wait_closed();
    supervisor.wait_silent();
}
