//! The desktop, whole and in process: its tasks and its services, with scripted processes, a screen in memory, and a
//! debugger of a browser that answers from memory. The clock is stopped until a test moves it.
//!
//! The tests in real containers prove that the programs behave as the scripted ones. These tests prove when the desktop
//! starts and ends, and what its users read then.

mod fake_browser;
mod harness;
mod idle_ends;
mod screens;
mod starts;
mod users;
