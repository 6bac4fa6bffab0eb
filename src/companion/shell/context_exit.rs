//! The context of a command that sets its own EXIT trap.

use super::context::exit_trap;

/// Lets a command that sets its own EXIT trap write the context before it exits: that trap would replace the trap that
/// writes the context.
pub(super) fn with_context_exit(command: &str, exit_script: &str, output: &str) -> String {
    // After a heredoc, which may lack its end, nothing can be appended; a here-string is not a heredoc.
    let has_heredoc = command.replace("<<<", "").contains("<<");
    let sets_trap = command.contains("trap") && !has_heredoc;
    if !sets_trap || !(command.contains("EXIT") || command.contains(" 0")) {
        return command.into();
    }
    let trap_script = exit_trap(exit_script, output);
    format!(
        "{command}\n{{ __osctl_code=$?; ( {trap_script} ); ( exit $__osctl_code ); }} >/dev/null 2>&1"
    )
}

#[cfg(test)]
mod tests {
    use super::with_context_exit;

    #[test]
    fn only_a_trap_for_the_end_needs_the_context_written_before() {
        let is_added = |command: &str| with_context_exit(command, "L", "O") != command;
        assert!(is_added("trap 'echo bye' EXIT") && is_added("trap : 0"));
        assert!(is_added("trap : EXIT; cat <<< text"));
        assert!(!is_added("trap : EXIT; cat <<END\ntext"));
        assert!(!is_added("echo EXIT") && !is_added("trap : INT"));
    }

    #[test]
    fn a_context_is_written_with_noclobber() {
        assert!(with_context_exit("set -C; trap : EXIT", "L", "O").contains(">|O"));
    }
}
