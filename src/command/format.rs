//! Durations, times and identifiers as text for people.

use chrono::{DateTime, Local};
use std::time::{SystemTime, UNIX_EPOCH};

/// Formats a duration in seconds for people.
pub(super) fn format_duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// Formats the age of a time given in seconds since 1970.
pub(super) fn format_age(created: f64) -> String {
    format_duration(seconds_since(created))
}

/// The seconds since a time given in seconds since 1970.
pub(super) fn seconds_since(time: f64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    (now.unwrap_or_default().as_secs_f64() - time).max(0.0)
}

/// The seconds since 1970 of a time as RFC 3339.
pub(super) fn parse_time(text: &str) -> Option<f64> {
    let time = DateTime::parse_from_rfc3339(text).ok()?;
    Some(time.timestamp_millis() as f64 / 1e3)
}

/// Formats a time in seconds since 1970 for people, in local time.
pub(super) fn format_time(seconds: f64) -> String {
    local_time(seconds).format("%m-%d %H:%M:%S").to_string()
}

/// Formats a time in seconds since 1970 as the local time of its day.
pub(super) fn format_time_of_day(seconds: f64) -> String {
    local_time(seconds).format("%H:%M:%S").to_string()
}

fn local_time(seconds: f64) -> DateTime<Local> {
    let time = DateTime::from_timestamp_millis((seconds * 1e3) as i64).unwrap_or_default();
    time.with_timezone(&Local)
}

/// The ID of an image for people: the algorithm and the first 12 digits, as `docker images` shows them.
pub(super) fn short_image_id(id: &str) -> String {
    id.chars().take(19).collect()
}
