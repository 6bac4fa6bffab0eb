//! The wire form of every refusal: status, headers and body of its HTTP response, and its text for a model.

use crate::archive::ArchiveError;
use crate::companion::criu::{CriuFailure, CriuFailureKind, CriuRefusal, StateAfterFailedRestore};
use crate::companion::cryo::CryoRefusal;
use crate::companion::desktop::DesktopRefusal;
use crate::companion::display::DisplayRefusal;
use crate::companion::evolve::EvolveRefusal;
use crate::companion::files::FilesRefusal;
use crate::companion::kernel::KernelRefusal;
use crate::companion::pty::PtyRefusal;
use crate::companion::shell::ShellRefusal;
use crate::protocol::error::{ApiError, FailedReply};
use crate::protocol::evolve::refusal;
use crate::protocol::files::EntryKind;
use crate::protocol::kernel::RunError;
use axum::Json;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use osctl_support::api::ApiRefusal;
use std::fmt::{Debug, Write};

const RECORDED_REFUSALS: &str = include_str!("tests/wire.txt");

fn kernel_refusals() -> Vec<KernelRefusal> {
    use KernelRefusal as R;
    vec![
        R::Busy,
        R::QueueFull,
        R::RunIdConflict("ID".into()),
        R::RunIdRemoved("ID".into()),
        R::NoRun("ID".into()),
        R::NotRecorded,
        R::NoSession("NAME".into()),
        R::TooManySessions(7),
        R::Invalid("WHY".into()),
        R::NoKernel("WHY".into()),
        R::KernelLost("WHY".into()),
        R::Checkpointed {
            session: "second".into(),
            checkpoint: "/data/criu/work/4".into(),
        },
        R::ResourceHeld("WHY".into()),
        R::GenerationMismatch {
            seen: 2,
            generation: 3,
        },
        R::ShuttingDown,
    ]
}

fn shell_refusals() -> Vec<ShellRefusal> {
    use ShellRefusal as R;
    vec![
        R::RunIdConflict("ID".into()),
        R::RunIdRemoved("ID".into()),
        R::NoRun("ID".into()),
        R::NotRecorded,
        R::NoJob(42),
        R::NoStdin("ID".into()),
        R::NoFolder {
            path: "/none".into(),
            why: "WHY".into(),
        },
        R::TooManyCommands,
        R::NoSupervisor("WHY".into()),
        R::ShuttingDown,
    ]
}

fn pty_refusals() -> Vec<PtyRefusal> {
    use PtyRefusal as R;
    vec![
        R::NoTerminal("ID".into()),
        R::TooManyTerminals(7),
        R::TooManyClients,
        R::Invalid("WHY".into()),
        R::ShellNotStarted("WHY".into()),
        R::ShuttingDown,
    ]
}

fn files_refusals() -> Vec<FilesRefusal> {
    use FilesRefusal as R;
    vec![
        R::Invalid("WHY".into()),
        R::NotFound("/a".into()),
        R::Denied {
            path: "/a".into(),
            why: "WHY".into(),
        },
        R::NotAFile {
            path: "/a".into(),
            kind: EntryKind::Folder,
        },
        R::NotAFolder("/a".into()),
        R::NotEmpty("/a".into()),
        R::Busy("/a".into()),
        R::StorageFull,
        R::OffsetMismatch(7),
        R::InProgress("ID".into()),
        R::NoUpload("ID".into()),
        R::ContentChanged,
        R::Disconnected,
        R::TooManyStreams(7),
        R::Archive(ArchiveError::OutsideFolder("../a".into())),
        R::Failed("WHY".into()),
    ]
}

fn cryo_refusals() -> Vec<CryoRefusal> {
    use CryoRefusal as R;
    let damaged = |previous| R::Damaged {
        name: "work".into(),
        generation: 4,
        why: "WHY".into(),
        previous,
    };
    let raised = RunError {
        kind: "ValueError".into(),
        message: "WHY".into(),
        traceback: Vec::new(),
    };
    let mut all: Vec<R> = kernel_refusals().into_iter().map(R::Kernel).collect();
    all.extend([
        R::Invalid("WHY".into()),
        R::NoName("work".into()),
        R::NoGeneration {
            name: "work".into(),
            generation: 4,
            newest: 3,
        },
        damaged(Some(3)),
        damaged(None),
        R::StrictLosses("WHY".into()),
        R::DiskFull,
        R::UserError(raised),
        R::Failed("WHY".into()),
    ]);
    all
}

fn criu_refusals() -> Vec<CriuRefusal> {
    use CriuRefusal as R;
    let damaged = |other_generation| R::Damaged {
        path: "/data/criu/work/4".into(),
        why: "WHY".into(),
        other_generation,
    };
    let failure = |kind, hint| CriuFailure {
        why: "WHY".into(),
        hint,
        kind,
    };
    let not_checkpointed = |kind, hint, is_lost| R::NotCheckpointed {
        reason: failure(kind, hint),
        is_lost,
    };
    let not_restored = |hint| R::NotRestored {
        reason: failure(CriuFailureKind::Other, hint),
        current_kernel: StateAfterFailedRestore::Unchanged,
    };
    let in_use = |session: &str| R::InUse {
        name: "work".into(),
        session: session.into(),
    };
    let mut all: Vec<R> = kernel_refusals().into_iter().map(R::Kernel).collect();
    all.extend([
        R::Invalid("WHY".into()),
        R::Unavailable("WHY".into()),
        R::NoCheckpoint {
            name: "work".into(),
            generation: Some(4),
        },
        R::NoCheckpoint {
            name: "work".into(),
            generation: None,
        },
        damaged(Some(3)),
        damaged(None),
        R::FilesChanged(vec!["/a".into()]),
        R::ProtocolMismatch("WHY".into()),
        R::PidsInUse(vec!["42 (sh)".into()]),
        in_use("default"),
        in_use("second"),
        R::NotRemoved("WHY".into()),
        not_checkpointed(CriuFailureKind::DiskFull, None, false),
        not_checkpointed(CriuFailureKind::Other, Some("HINT"), false),
        not_checkpointed(CriuFailureKind::Other, None, true),
        not_restored(Some("HINT")),
        not_restored(None),
    ]);
    all
}

fn evolve_refusals() -> Vec<EvolveRefusal> {
    use EvolveRefusal as R;
    let mut all = vec![
        R::NoKeeper("WHY".into()),
        R::NoReply("WHY".into()),
        R::Busy("20260102-030405".parse().unwrap()),
        R::Invalid("WHY".into()),
        R::Keeper(ApiError::new(refusal::KEEPER_BUSY, "MESSAGE").with_hint("HINT")),
    ];
    all.extend(
        [
            refusal::KEEPER_BAD_REQUEST,
            refusal::KEEPER_FORBIDDEN,
            refusal::KEEPER_NO_SUCH_RUN,
            refusal::KEEPER_RATE_LIMITED,
            refusal::FORMER_KEEPER_RATE_LIMITED,
        ]
        .map(|kind| R::Keeper(ApiError::new(kind, "MESSAGE"))),
    );
    all
}

fn desktop_refusals() -> Vec<DesktopRefusal> {
    use DesktopRefusal as R;
    use DisplayRefusal as D;
    vec![
        R::NotAvailable("WHY".into()),
        R::NotReady("WHY".into()),
        R::Display(D::Unavailable("WHY".into())),
        R::Display(D::Invalid("WHY".into())),
        R::Display(D::NoWindow(42)),
        R::Display(D::NotApplied("WHY".into())),
    ]
}

fn has_no_tool_text(refusal: &impl Debug) -> bool {
    let name = std::any::type_name_of_val(refusal);
    name.ends_with("PtyRefusal") || name.ends_with("CriuRefusal")
}

/// Writes the refusals, their responses and their texts for a model.
async fn write_refusals<R: Debug + Into<ApiRefusal>>(wire: &mut String, refusals: Vec<R>) {
    for refusal in refusals {
        writeln!(wire, "{refusal:?}").unwrap();
        let is_tool = !has_no_tool_text(&refusal);
        let refusal: ApiRefusal = refusal.into();
        write_response(wire, refusal.clone().into_response()).await;
        if is_tool {
            writeln!(wire, "  tool: {}", refusal.into_tool_text()).unwrap();
        }
    }
}

async fn write_response(wire: &mut String, response: Response) {
    write!(wire, "  {}", response.status()).unwrap();
    for (name, value) in response.headers() {
        write!(wire, ", {name}: {}", value.to_str().unwrap()).unwrap();
    }
    let body = response.into_body().collect().await.unwrap().to_bytes();
    writeln!(wire, "\n  {}", String::from_utf8_lossy(&body)).unwrap();
}

#[tokio::test]
async fn every_refusal_has_its_recorded_wire_form() {
    let mut wire = String::new();
    write_refusals(&mut wire, kernel_refusals()).await;
    write_refusals(&mut wire, shell_refusals()).await;
    write_refusals(&mut wire, pty_refusals()).await;
    write_refusals(&mut wire, files_refusals()).await;
    write_refusals(&mut wire, cryo_refusals()).await;
    for refusal in cryo_refusals() {
        writeln!(wire, "in a list: {refusal:?}").unwrap();
        let (status, error) = refusal.into_listed_refusal().into_parts();
        let listed = (status, Json(FailedReply::from(error)));
        write_response(&mut wire, listed.into_response()).await;
    }
    write_refusals(&mut wire, criu_refusals()).await;
    write_refusals(&mut wire, evolve_refusals()).await;
    write_refusals(&mut wire, desktop_refusals()).await;
    for (found, recorded) in wire.lines().zip(RECORDED_REFUSALS.lines()) {
        assert_eq!(found, recorded);
    }
    assert_eq!(wire.lines().count(), RECORDED_REFUSALS.lines().count());
}
