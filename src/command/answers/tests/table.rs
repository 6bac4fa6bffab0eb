//! The commands and their answers.

use crate::command::answers::*;
use crate::protocol::display::ScreenSize;
use crate::ui::FailureAnswer;
use schemars::{JsonSchema, SchemaGenerator};

/// Commands that print no answer, also with `--json`.
pub(super) const SILENT_COMMANDS: &[&str] = &[
    "osctl completions",
    "osctl config edit",
    "osctl man",
    "osctl mcp stdio",
    "osctl repl",
];

/// An answer, and the commands that print it.
pub(super) struct DocumentedAnswer {
    pub(super) name: &'static str,
    pub(super) commands: Vec<&'static str>,
    /// Adds the type to the definitions.
    pub(super) define: fn(&mut SchemaGenerator),
}

fn answer<T: JsonSchema>(name: &'static str, commands: &[&'static str]) -> DocumentedAnswer {
    assert_eq!(T::schema_name(), name);
    DocumentedAnswer {
        name,
        commands: commands.to_vec(),
        define: |generator| {
            generator.subschema_for::<T>();
        },
    }
}

/// All answers, in the order of the page.
pub(super) fn answers() -> Vec<DocumentedAnswer> {
    macro_rules! table {
        ($($name:ident: $($command:literal),+;)*) => {
            vec![$(answer::<$name>(stringify!($name), &[$($command),+])),*]
        };
    }
    table![
        FailureAnswer: "any command that fails";
        StatusAnswer: "osctl status", "osctl up", "osctl restart";
        InstancesAnswer: "osctl ls";
        DownAnswer: "osctl down";
        BuildAnswer: "osctl build";
        DoctorAnswer: "osctl doctor";
        LogLine: "osctl logs", "osctl evolve logs ID";
        ExecAnswer: "osctl exec CODE", "osctl attach ID";
        ShellAnswer: "osctl shell COMMAND", "osctl attach ID";
        StartedAnswer: "osctl exec --detach CODE", "osctl shell --detach COMMAND";
        RunsAnswer: "osctl runs";
        InterruptAnswer: "osctl interrupt";
        ResetAnswer: "osctl reset";
        TerminalsAnswer: "osctl shell --list";
        TerminalEndedAnswer: "osctl shell --end ID";
        SessionsAnswer: "osctl sessions ls";
        SessionEntry: "osctl sessions create";
        SessionRemovedAnswer: "osctl sessions rm NAME";
        ActivitiesAnswer: "osctl activity";
        ActivityEntry: "osctl activity -f";
        EnvironmentAnswer: "osctl env ls", "osctl env set NAME", "osctl env rm NAME";
        CopyAnswer: "osctl cp SRC DST";
        StoreAnswer: "osctl cryo store";
        ReloadAnswer: "osctl cryo reload";
        StoredStatesAnswer: "osctl cryo ls";
        GenerationAnswer: "osctl cryo show NAME";
        GenerationsRemovedAnswer: "osctl cryo rm NAME";
        CheckpointAnswer: "osctl criu checkpoint";
        RestoreAnswer: "osctl criu restore";
        CriuStatusAnswer: "osctl criu status";
        CheckpointsAnswer: "osctl criu ls";
        CheckpointRemovedAnswer: "osctl criu rm NAME";
        EvolveRunAnswer: "osctl evolve", "osctl evolve rollback", "osctl evolve stop", "osctl evolve show ID";
        EvolveStartedAnswer: "osctl evolve --detach", "osctl evolve rollback --detach", "osctl evolve stop --detach";
        EvolveStatusAnswer: "osctl evolve status";
        EvolveHistoryAnswer: "osctl evolve history";
        EvolveDiffAnswer: "osctl evolve diff ID";
        ServersAnswer: "osctl mcp ls", "osctl mcp status";
        ToolsAnswer: "osctl mcp tools";
        ToolResultAnswer: "osctl mcp call SERVER TOOL";
        ClientAnswer: "osctl mcp connect CLIENT", "osctl mcp disconnect CLIENT";
        DesktopAnswer: "osctl desktop";
        ScreenSize: "osctl desktop --resolution WIDTHxHEIGHT";
        ScreenshotAnswer: "osctl screenshot FILE";
        KernelspecAnswer: "osctl jupyter install";
        KernelspecsAnswer: "osctl jupyter ls";
        KernelspecRemovedAnswer: "osctl jupyter uninstall";
        PackagesAnswer: "osctl packages ls";
        PackagesChangedAnswer: "osctl add PACKAGE", "osctl remove PACKAGE", "osctl packages lock";
        InitAnswer: "osctl init";
        ConfigAnswer: "osctl config show";
        PathAnswer: "osctl config path", "osctl config init";
    ]
}
