//! Shell tools: run commands, and install packages with a command.

use super::run_result::{DEFAULT_TOOL_OUTPUT_BYTES, ToolRunContent};
use super::run_wait::{RunWaitEnd, parse_seconds, wait_with_progress};
use super::server::OsServer;
use super::tool_error::ToolError;
use super::tool_result::ToolResult;
use crate::companion::shell::CommandRun;
use crate::protocol::shell::ShellRequest;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShellToolArgs {
    /// Command for bash.
    command: String,
    /// Session whose working directory, environment, functions and aliases the command uses and changes, created if
    /// missing. If omitted, `default`, which all clients share.
    session: Option<String>,
    /// Standard input of the command; empty if omitted.
    stdin: Option<String>,
    /// End the command and all processes that it started after this many seconds.
    timeout: Option<f64>,
    /// Answer after this many seconds at the latest; a command that has not ended continues.
    wait: Option<f64>,
    /// Maximum bytes of each stream in the answer.
    max_output: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InstallToolArgs {
    /// Requirements in pip's format, such as `pandas` or `numpy>=2`.
    packages: Vec<String>,
    /// Upgrade packages that are installed already.
    #[serde(default)]
    upgrade: bool,
    /// End the installation after this many seconds.
    timeout: Option<f64>,
}

#[tool_router(router = shell_tools, vis = "pub(super)")]
impl OsServer {
    /// Run a command in bash. `cd`, `export`, functions and aliases stay from call to call. Output is sent as
    /// progress while the command runs; cancelling the call ends the command and all processes that it started.
    #[tool(
        title = "Run a command",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = false,
            open_world_hint = true
        )
    )]
    async fn run_shell(
        &self,
        Parameters(args): Parameters<ShellToolArgs>,
        cx: RequestContext<RoleServer>,
    ) -> ToolResult {
        let session = self.ensure_session(args.session).await?;
        let command = ShellRequest {
            session,
            timeout: args.timeout,
            stdin: args.stdin,
            ..ShellRequest::new(args.command)
        };
        let limit = args.max_output.unwrap_or(DEFAULT_TOOL_OUTPUT_BYTES);
        self.run_command(&cx, command, parse_seconds("wait", args.wait)?, limit)
            .await?
            .into_tool_result()
    }

    /// Install Python packages, which the kernel can import immediately. They survive a replacement of the computer.
    #[tool(
        title = "Install packages",
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = true,
            open_world_hint = true
        )
    )]
    async fn install_package(
        &self,
        Parameters(args): Parameters<InstallToolArgs>,
        cx: RequestContext<RoleServer>,
    ) -> ToolResult {
        let mut command = ShellRequest::new(install_command(&args.packages, args.upgrade)?);
        command.timeout = args.timeout;
        let result = self
            .run_command(&cx, command, None, DEFAULT_TOOL_OUTPUT_BYTES)
            .await?;
        let is_error = result.report.returncode != Some(0);
        super::tool_result::with_error_flag(result.into_tool_result(), is_error)
    }
}

impl OsServer {
    async fn run_command(
        &self,
        cx: &RequestContext<RoleServer>,
        command: ShellRequest,
        wait: Option<Duration>,
        limit: usize,
    ) -> Result<ToolRunContent, ToolError> {
        if parse_seconds("timeout", command.timeout)? == Some(Duration::ZERO) {
            let why = "`timeout` is 0: give the maximum run time of the command in seconds";
            return Err(ToolError::new(why));
        }
        if command.command.contains('\0') {
            return Err(ToolError::new("a command can't contain NUL"));
        }
        let shells = &self.factory.0.handles.shells;
        let session = command.session.clone();
        let run = shells.execute(command).await?;
        let waited =
            wait_with_progress(self, cx, &run, || shells.command_report(&session), wait).await;
        if waited == RunWaitEnd::Cancelled {
            // If the client only disconnected, the command continues.
            if !self.is_disconnected() {
                shells.interrupt(&run.id).await?;
            }
            return Err(ToolError::new("the call was cancelled"));
        }
        Ok(self.command_content(&run, limit).await)
    }

    /// The state or result of a command.
    pub(super) async fn command_content(&self, run: &CommandRun, limit: usize) -> ToolRunContent {
        let shells = &self.factory.0.handles.shells;
        let session = &run.request.session;
        let reply = run.build_reply(shells.command_report(session));
        let job = match reply.background {
            true => shells
                .list_jobs()
                .await
                .into_iter()
                .find(|job| job.run == run.id),
            false => None,
        };
        ToolRunContent::from_shell_reply(reply, session, limit, job.map(|job| job.pid))
    }
}

/// The command that installs the packages. A package can't be an option or a second command.
fn install_command(packages: &[String], upgrade: bool) -> Result<String, ToolError> {
    if packages.is_empty() {
        return Err(ToolError::new(
            "`packages` is empty: name at least one package",
        ));
    }
    let mut command = "uv pip install".to_owned();
    if upgrade {
        command.push_str(" --upgrade");
    }
    command.push_str(" --");
    for package in packages {
        if package.trim().is_empty() || package.starts_with('-') || package.contains(['\0', '\n']) {
            return Err(ToolError(format!(
                "`{package}` is not a package: give a name, optionally with a version"
            )));
        }
        command.push_str(&format!(" '{}'", package.replace('\'', r"'\''")));
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::install_command;

    #[test]
    fn packages_are_quoted_arguments() {
        let quote = |all: &[&str]| {
            install_command(
                &all.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(),
                false,
            )
        };
        let two = quote(&["numpy>=2", "it's; rm"]).unwrap();
        assert_eq!(two, r"uv pip install -- 'numpy>=2' 'it'\''s; rm'");
        for wrong in [&[][..], &["--index-url=http://x"], &[" "], &["a\nb"]] {
            assert!(quote(wrong).is_err(), "{wrong:?}");
        }
    }
}
