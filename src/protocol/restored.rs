//! What a namespace was brought back from, and what of it did not come back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// Lost variables that are named one by one; `lost_count` counts all.
pub(crate) const MAX_NAMED_LOSSES: usize = 50;

/// Those that a sentence names.
const MAX_LOSSES_IN_WORDS: usize = 5;

/// The stored generation that a namespace was brought back from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct RestoredFrom {
    /// The name that it was stored under.
    pub(crate) name: String,
    /// Its number under that name; not the kernel's.
    pub(crate) generation: u64,
    /// When it was stored, in seconds since 1970.
    pub(crate) created: f64,
    /// Runs of the session that began after it was stored: what they changed is missing.
    /// `null` where they were not counted.
    pub(crate) runs_after: Option<u64>,
    /// Whether there may have been more: the machine stopped meanwhile without writing the count to the disk.
    #[serde(default)]
    pub(crate) runs_after_is_estimate: bool,
    /// Variables that are there again.
    pub(crate) variables: u64,
    /// Variables that are not.
    pub(crate) lost_count: u64,
    /// Of these, variables that the receipt of the store called saved, or a recipe.
    pub(crate) lost_unexpectedly: u64,
    /// The first 50 of those that are lost, these before the others.
    pub(crate) lost: Vec<LostVariable>,
    /// Newer generations that could not be reloaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) skipped: Vec<SkippedGeneration>,
    /// What may differ although it is not lost: files of imported modules that have changed since. The first 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A variable that did not come back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct LostVariable {
    pub(crate) name: String,
    pub(crate) why: Option<String>,
    /// Whether the receipt of the store called it saved, or a recipe.
    pub(crate) was_saved: bool,
}

/// A generation that gave way to the one before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct SkippedGeneration {
    pub(crate) generation: u64,
    pub(crate) why: String,
}

/// What the last reload of a generation did not bring back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LastReload {
    /// In seconds since 1970.
    pub(crate) time: f64,
    /// Whose kernel got it.
    pub(crate) session: String,
    /// Variables that the receipt of the store called saved, or a recipe, and that did not come back.
    pub(crate) lost_count: u64,
    /// The first 50 of these.
    pub(crate) lost: Vec<LostVariable>,
}

impl RestoredFrom {
    /// Which generation it is, how old, how many runs came after it, and what is lost.
    pub(crate) fn describe(&self) -> String {
        let mut words = format!(
            "`{}` generation {}, stored {} ago; {}",
            self.name,
            self.generation,
            age_in_words(self.created),
            self.runs_in_words()
        );
        if self.lost_count > 0 {
            words += &format!("; {} lost: {}", self.lost_count, self.losses_in_words());
        }
        for SkippedGeneration { generation, why } in &self.skipped {
            words += &format!("; generation {generation} could not be reloaded: {why}");
        }
        for warning in self.warnings.iter().take(MAX_LOSSES_IN_WORDS) {
            words += &format!("; {warning}");
        }
        words
    }

    fn runs_in_words(&self) -> String {
        let runs = match self.runs_after {
            None => return "how many runs came after it is not known".into(),
            Some(0) => "no run".to_owned(),
            Some(1) => "1 run".to_owned(),
            Some(runs) => format!("{runs} runs"),
        };
        let estimate = match self.runs_after_is_estimate {
            true => " (an estimate: the machine stopped meanwhile)",
            false => "",
        };
        format!("{runs} came after it{estimate}")
    }

    fn losses_in_words(&self) -> String {
        let named = self.lost.iter().take(MAX_LOSSES_IN_WORDS);
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
    pub(crate) fn describe(&self) -> String {
        match &self.why {
            Some(why) => format!("`{}` ({why})", self.name),
            None => format!("`{}`", self.name),
        }
    }
}

/// How long ago that was, of seconds since 1970.
fn age_in_words(time: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    match (now.unwrap_or_default().as_secs_f64() - time).max(0.0) {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::{LostVariable, RestoredFrom, SkippedGeneration, age_in_words};

    #[test]
    fn what_is_missing_is_said_in_a_sentence() {
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
        from.warnings.clear();
        let words = "`default` generation 4, stored 0 s ago; 2 runs came after it";
        assert_eq!(from.describe(), words);
        from.runs_after = Some(1);
        from.runs_after_is_estimate = true;
        assert!(
            from.describe()
                .contains("; 1 run came after it (an estimate: ")
        );
        from.runs_after = None;
        assert!(from.describe().ends_with("is not known"));
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
        let end = "; 9 lost: `v0` (a generator), `v1`, `v2`, `v3`, `v4` and 4 more; generation 5 could not be reloaded: its manifest can't be read";
        assert!(from.describe().ends_with(end), "{}", from.describe());
    }

    #[test]
    fn an_age_is_rounded() {
        assert_eq!(age_in_words(0.0).split(' ').next_back(), Some("h"));
    }
}
