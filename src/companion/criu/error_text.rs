//! Translation of criu's log into error messages; pure functions.

use std::path::PathBuf;

/// Why a process could not be checkpointed or restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CriuFailure {
    pub(crate) why: String,
    pub(crate) hint: Option<&'static str>,
    pub(crate) kind: CriuFailureKind,
}

/// The kind of a failure, which decides what callers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CriuFailureKind {
    /// A resource of the kernel that criu can't save, or that is missing at the restore.
    Resource,
    /// Process ids that are in use.
    PidsInUse,
    /// The disk is full.
    DiskFull,
    Other,
}

const NETWORK_SOCKET_HINT: &str = "close the socket first, or create it with `runtime.resource`: the kernel closes it \
     before a checkpoint and creates it again";
pub(super) const FILE_CHANGED_HINT: &str =
    "restore the file as it was at the checkpoint, or restore an earlier generation";

/// Returns the first error of the log; the errors after it are its consequences.
pub(super) fn parse_log_failure(log: &str) -> CriuFailure {
    let errors: Vec<&str> = log.lines().filter_map(strip_error_prefix).collect();
    let found = errors.iter().find_map(|line| match_known_error(line));
    found.unwrap_or_else(|| CriuFailure {
        why: errors.first().map_or_else(
            || "criu ended without an error message".into(),
            |line| format!("criu reports: {}", line.trim()),
        ),
        hint: None,
        kind: CriuFailureKind::Other,
    })
}

/// Returns the text after `Error (FILE:LINE): `.
fn strip_error_prefix(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("Error (")?;
    Some(rest.split_once("): ")?.1)
}

fn match_known_error(line: &str) -> Option<CriuFailure> {
    let resource = |why: String, hint| {
        Some(CriuFailure {
            why,
            hint: Some(hint),
            kind: CriuFailureKind::Resource,
        })
    };
    let has = |text: &str| line.contains(text);
    // Since 6.16 Linux no longer reports two options of a network socket that criu needs.
    if has("Connected TCP socket") || has("inet:") || has("Can't get 1:16 opt") {
        return resource(
            "the kernel has a network socket open".into(),
            NETWORK_SOCKET_HINT,
        );
    }
    if has("half of stream unix connection") {
        let peer = line
            .rsplit("peer name: ")
            .next()
            .unwrap_or("another process");
        return resource(
            format!("the kernel is connected to `{peer}`"),
            NETWORK_SOCKET_HINT,
        );
    }
    if has("Can't dump ghost file") {
        let path = text_between(line, "ghost file ", " of ").unwrap_or_default();
        return resource(
            format!(
                "the kernel has a deleted file open that is too large for a checkpoint: `{path}`"
            ),
            "close the file first",
        );
    }
    if has("link remap") {
        let path = text_between(line, "link remap for ", ". Use").unwrap_or_default();
        return resource(
            format!("the kernel uses `{path}`, which was deleted"),
            "release the objects that use it first, such as queues and locks of `multiprocessing`",
        );
    }
    if has("fsnotify") {
        let hint = "end the file watcher first";
        return resource("the kernel watches files for changes".into(), hint);
    }
    if has("Can't retrieve FDs") || has("send_fds failed") {
        let hint = "close descriptors other than files, pipes and sockets, such as an io_uring";
        return resource(
            "the kernel has a descriptor open that can't be checkpointed".into(),
            hint,
        );
    }
    if has("has bad size") {
        let path = text_between(line, "File ", " has bad").unwrap_or_default();
        let sizes = line.rsplit("bad size ").next().unwrap_or_default();
        let sizes = sizes.replace("(expect ", "bytes and had ");
        let why = format!(
            "`{}` has {}",
            absolute_path(path),
            sizes.trim_end_matches(')')
        );
        return resource(why, FILE_CHANGED_HINT);
    }
    if let (true, Some(path)) = (
        has("No such file"),
        text_between(line, "Can't open file ", ":"),
    ) {
        let path = path.trim_end_matches(" on restore");
        let why = format!(
            "`{}`, which the kernel had open, is missing",
            absolute_path(path)
        );
        return resource(why, FILE_CHANGED_HINT);
    }
    if has("Address already in use") {
        let path = text_between(line, "addr ", ":").unwrap_or_default();
        let hint = "end the process that listens there";
        return resource(format!("another process listens at `{path}`"), hint);
    }
    let other = |why: &str, hint, kind| {
        Some(CriuFailure {
            why: why.into(),
            hint,
            kind,
        })
    };
    if (has("Can't fork for") && has("File exists")) || has("create a thread: -17") {
        let why = "process IDs of the kernel are in use";
        let hint = "end the processes that use them, or run `osctl restart`";
        return other(why, Some(hint), CriuFailureKind::PidsInUse);
    }
    if has("No space left") {
        return other("the disk is full", None, CriuFailureKind::DiskFull);
    }
    if has("suspending seccomp") || has("suspend seccomp") {
        let hint = "run `osctl up --criu`";
        return other(
            "a seccomp profile prevents it",
            Some(hint),
            CriuFailureKind::Other,
        );
    }
    None
}

fn text_between<'a>(line: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    Some(line.split_once(begin)?.1.split_once(end)?.0)
}

/// criu writes file names without the leading slash.
fn absolute_path(path: &str) -> String {
    PathBuf::from("/").join(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::{CriuFailureKind, parse_log_failure};

    fn parse_line(line: &str) -> (String, CriuFailureKind) {
        let log = format!(
            "(00.000031) Warn  (criu/kerndat.c:1195): $XDG_RUNTIME_DIR not set\n{line}\n(00.020497) Error (criu/cr-dump.c:2111): Dumping FAILED.\n"
        );
        let reason = parse_log_failure(&log);
        (reason.why, reason.kind)
    }

    #[test]
    fn known_errors_of_criu_are_translated() {
        let network = (
            "the kernel has a network socket open".into(),
            CriuFailureKind::Resource,
        );
        for line in [
            "(00.011488) Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.",
            "(00.008916) Error (criu/sockets.c:628): sockets: Can't get 1:16 opt: Operation not supported",
        ] {
            assert_eq!(parse_line(line), network);
        }
        for (line, expected) in [
            (
                "(00.037624) Error (criu/sk-unix.c:881): unix: Can't dump half of stream unix connection. name: (null); peer name: /run/x.sock",
                "the kernel is connected to `/run/x.sock`",
            ),
            (
                "(00.013082) Error (criu/files-reg.c:1031): Can't dump ghost file /tmp/#6 of 3002368 size, increase limit",
                "the kernel has a deleted file open that is too large for a checkpoint: `/tmp/#6`",
            ),
            (
                "(00.008074) Error (criu/files-reg.c:1122): Can't create link remap for /dev/shm/sem.2C. Use link-remap option.",
                "the kernel uses `/dev/shm/sem.2C`, which was deleted",
            ),
            (
                "(00.029573) Error (criu/fsnotify.c:284): fsnotify: \tCan't dump that handle",
                "the kernel watches files for changes",
            ),
            (
                "(00.004837)     29: Error (criu/files-reg.c:2175): File root/host/out.txt has bad size 839 (expect 5)",
                "`/root/host/out.txt` has 839 bytes and had 5",
            ),
            (
                "(00.004703)     29: Error (criu/files-reg.c:2353): Can't open file root/host/out.txt on restore: No such file or directory",
                "`/root/host/out.txt`, which the kernel had open, is missing",
            ),
            (
                "(00.004896)     29: Error (criu/sk-unix.c:1651): unix: Can't bind id 0x24 ino 4049811 addr /run/x1.sock: Address already in use",
                "another process listens at `/run/x1.sock`",
            ),
        ] {
            assert_eq!(
                parse_line(line),
                (expected.into(), CriuFailureKind::Resource),
                "{line}"
            );
        }
        for line in [
            "(00.037591) Error (criu/cr-restore.c:1230): Can't fork for 150: File exists",
            "(00.024379) pie: 150: Error (criu/pie/restorer.c:2106): Unable to create a thread: -17",
        ] {
            assert_eq!(parse_line(line).1, CriuFailureKind::PidsInUse);
        }
        let full = "(00.1) Error (criu/page-xfer.c:1): Unable to write: No space left on device";
        assert_eq!(parse_line(full).1, CriuFailureKind::DiskFull);
    }

    #[test]
    fn unknown_errors_are_passed_on() {
        let (why, kind) = parse_line("(00.1) Error (criu/x.c:1): Something new");
        assert_eq!(
            (why.as_str(), kind),
            ("criu reports: Something new", CriuFailureKind::Other)
        );
        assert_eq!(
            parse_log_failure("").why,
            "criu ended without an error message"
        );
    }
}
