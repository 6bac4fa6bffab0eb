//! The source of a restored namespace, and the variables that were lost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// Maximum number of lost variables that are listed by name; `lost_count` counts all.
pub const MAX_LISTED_LOSSES: usize = 50;

/// Maximum number of lost variables in a sentence.
const MAX_LOSSES_IN_SENTENCE: usize = 5;

/// The stored generation from which a namespace was restored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct RestoredFrom {
    /// The name under which the generation was stored.
    pub name: String,
    /// The generation's number under that name; not the generation of the kernel.
    pub generation: u64,
    /// Time of the store, in seconds since 1970.
    pub created: f64,
    /// Runs of the session that started after the store: their changes are missing. `null` if the runs were not
    /// counted.
    pub runs_after: Option<u64>,
    /// Whether there may have been more runs: the machine stopped before the count was written to the disk.
    #[serde(default)]
    pub runs_after_is_estimate: bool,
    /// Variables that were restored.
    pub variables: u64,
    /// Variables that were lost, or that came back with a difference that the receipt of the store does not name.
    pub lost_count: u64,
    /// Variables of `lost_count` whose verdict in the store was not `lost`. A variable that came back different is
    /// counted; `why` names the difference.
    pub lost_unexpectedly: u64,
    /// The first 50 lost variables; those counted in `lost_unexpectedly` come first.
    pub lost: Vec<LostVariable>,
    /// Newer generations that could not be reloaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedGeneration>,
    /// What differs although it is not lost: variables that the store called altered, then files of imported modules
    /// that have changed since. The first 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A variable that was lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct LostVariable {
    pub name: String,
    pub why: Option<String>,
    /// Whether the verdict of the store was not `lost`.
    pub was_saved: bool,
}

/// A generation that could not be reloaded, so that an earlier one was used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct SkippedGeneration {
    pub generation: u64,
    pub why: String,
}

/// The losses of the last reload of a generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LastReload {
    /// Time of the reload, in seconds since 1970.
    pub time: f64,
    /// The session that received the variables.
    pub session: String,
    /// Variables whose verdict in the store was not `lost`, and that were lost or came back different.
    pub lost_count: u64,
    /// The first 50 of these variables.
    pub lost: Vec<LostVariable>,
}

impl RestoredFrom {
    /// Whether nothing is lost, missing or changed.
    pub fn is_complete(&self) -> bool {
        self.lost_count == 0
            && self.runs_after == Some(0)
            && self.skipped.is_empty()
            && self.warnings.is_empty()
    }

    /// A sentence with the generation, its age, the runs after it, and the lost variables.
    pub fn describe(&self) -> String {
        let mut words = format!(
            "`{}` generation {}, stored {} ago; {}",
            self.name,
            self.generation,
            describe_age(self.created),
            self.describe_runs()
        );
        if self.lost_count > 0 {
            words += &format!(
                "; {} lost or different: {}",
                self.lost_count,
                self.describe_losses()
            );
        }
        for SkippedGeneration { generation, why } in &self.skipped {
            words += &format!("; generation {generation} could not be reloaded: {why}");
        }
        for warning in self.warnings.iter().take(MAX_LOSSES_IN_SENTENCE) {
            words += &format!("; {warning}");
        }
        words
    }

    fn describe_runs(&self) -> String {
        let runs = match self.runs_after {
            None => return "the number of later runs is unknown".into(),
            Some(0) => "no runs".to_owned(),
            Some(1) => "1 run".to_owned(),
            Some(runs) => format!("{runs} runs"),
        };
        let estimate = match self.runs_after_is_estimate {
            true => " (estimated: the machine stopped in between)",
            false => "",
        };
        format!("{runs} between the store and the restore{estimate}")
    }

    fn describe_losses(&self) -> String {
        let named = self.lost.iter().take(MAX_LOSSES_IN_SENTENCE);
        let named: Vec<String> = named.map(LostVariable::describe).collect();
        let rest = self.lost_count.saturating_sub(named.len() as u64);
        let more = match rest {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        named.join(", ") + &more
    }
}

impl LostVariable {
    pub fn describe(&self) -> String {
        match &self.why {
            Some(why) => format!("`{}` ({why})", self.name),
            None => format!("`{}`", self.name),
        }
    }
}

/// The age of a time given in seconds since 1970, in words.
fn describe_age(time: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    match (now.unwrap_or_default().as_secs_f64() - time).max(0.0) {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::{LostVariable, RestoredFrom, SkippedGeneration, describe_age};

    #[test]
    fn a_sentence_names_the_lost_variables() {
        let mut from = RestoredFrom {
            name: "default".into(),
            generation: 4,
            created: f64::MAX,
            runs_after: Some(2),
            runs_after_is_estimate: false,
            variables: 3,
            lost_count: 0,
            lost_unexpectedly: 0,
            lost: Vec::new(),
            skipped: Vec::new(),
            warnings: vec!["`lib.py` has changed".into()],
        };
        assert!(from.describe().ends_with("; `lib.py` has changed"));
        from.runs_after = Some(0);
        assert!(!from.is_complete());
        from.warnings.clear();
        assert!(from.is_complete());
        from.runs_after = Some(2);
        assert!(!from.is_complete());
        let words =
            "`default` generation 4, stored 0 s ago; 2 runs between the store and the restore";
        assert_eq!(from.describe(), words);
        from.runs_after = Some(1);
        from.runs_after_is_estimate = true;
        assert!(
            from.describe()
                .contains("; 1 run between the store and the restore (estimated: ")
        );
        from.runs_after = None;
        assert!(from.describe().ends_with("is unknown"));
        let lost = |number: u64| LostVariable {
            name: format!("v{number}"),
            why: (number == 0).then(|| "a generator".into()),
            was_saved: false,
        };
        from.lost = (0..7).map(lost).collect();
        from.lost_count = 9;
        from.skipped = vec![SkippedGeneration {
            generation: 5,
            why: "its manifest can't be read".into(),
        }];
        let end = "; 9 lost or different: `v0` (a generator), `v1`, `v2`, `v3`, `v4` and 4 more; generation 5 could not be reloaded: its manifest can't be read";
        assert!(from.describe().ends_with(end), "{}", from.describe());
    }

    #[test]
    fn an_age_is_rounded() {
        assert_eq!(describe_age(0.0).split(' ').next_back(), Some("h"));
    }
}
