//! The wall between Rust and C: no panic crosses it.
//!
//! A panic inside a hook ends that hook with one line in the log and the answer 0, so the job goes
//! on as Slurm made it; the next hook runs as if nothing had been. Rust's own report of a panic is
//! kept quiet inside a hook: it would write to fd 2, which is the user's log, and print a
//! backtrace whenever the user's RUST_BACKTRACE says so.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use super::{Outcome, handle};

/// Runs a hook's content and turns what becomes of it into Slurm's 0 or -1.
pub(super) fn guard(hook: &str, content: impl FnOnce() -> Outcome) -> c_int {
    guard_with(hook, content, handle::log)
}

fn guard_with(hook: &str, content: impl FnOnce() -> Outcome, log: impl FnOnce(&str)) -> c_int {
    quiet_inside_hooks();
    let outside = INSIDE.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(content));
    INSIDE.set(outside);
    match outcome {
        Ok(Outcome::Fine) => 0,
        Ok(Outcome::Refused) => -1,
        Err(payload) => {
            let what = describe(&*payload);
            // A payload's own destructor could panic in turn.
            std::mem::forget(payload);
            let place = PLACE.get();
            log(&format!(
                "gpu-align: internal error in {hook} ({what}{}); the job goes on as Slurm made it",
                place.text()
            ));
            0
        }
    }
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static PLACE: Cell<Place> = const { Cell::new(Place::NOWHERE) };
}

/// Where the last panic inside a hook was: `, src/plugin.rs:12`. Kept without allocation or
/// destructor, so that the thread-local needs no clean-up when Slurm unloads the file.
#[derive(Clone, Copy)]
struct Place {
    bytes: [u8; 96],
    length: usize,
}

impl Place {
    const NOWHERE: Self = Self { bytes: [0; 96], length: 0 };

    fn of(info: &PanicHookInfo<'_>) -> Self {
        let mut place = Self::NOWHERE;
        if let Some(location) = info.location() {
            let text = format!(", {}:{}", location.file(), location.line());
            let tail = text.len().min(place.bytes.len());
            place.bytes[..tail].copy_from_slice(&text.as_bytes()[..tail]);
            place.length = tail;
        }
        place
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.length]).into_owned()
    }
}

fn quiet_inside_hooks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let outside = take_hook();
        set_hook(Box::new(move |info| {
            if INSIDE.get() {
                PLACE.set(Place::of(info));
            } else {
                outside(info);
            }
        }));
    });
}

/// A panic's message as one short line.
fn describe(payload: &(dyn Any + Send)) -> String {
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    message.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(content: impl FnOnce() -> Outcome) -> (c_int, Option<String>) {
        let mut line = None;
        let code = guard_with("task_init", content, |text| line = Some(text.to_owned()));
        (code, line)
    }

    #[test]
    fn outcomes_become_0_and_minus_1() {
        assert_eq!(guarded(|| Outcome::Fine), (0, None));
        assert_eq!(guarded(|| Outcome::Refused), (-1, None));
    }

    #[test]
    fn a_panic_is_one_line_and_0_and_the_next_hook_works() {
        let (code, line) = guarded(|| panic!("card {}\nlost", 3));
        let line = line.expect("a line");
        assert_eq!(code, 0);
        assert!(
            line.starts_with("gpu-align: internal error in task_init (card 3 lost, "),
            "{line}"
        );
        assert!(line.ends_with("); the job goes on as Slurm made it"), "{line}");
        assert!(line.contains("guard.rs:"), "{line}");
        assert_eq!(guarded(|| Outcome::Refused), (-1, None));
    }

    #[test]
    fn an_endless_message_is_cut() {
        let (_, line) = guarded(|| panic!("{}", "x".repeat(1 << 20)));
        assert!(line.expect("a line").len() < 500);
    }

    #[test]
    fn a_payload_that_is_no_text_is_named_so() {
        let (code, line) = guarded(|| std::panic::panic_any(7_u8));
        assert_eq!(code, 0);
        assert!(line.expect("a line").contains("a panic without a message"));
    }

    #[test]
    fn after_a_hook_panics_are_reported_as_before() {
        guarded(|| panic!("inside"));
        assert!(!INSIDE.get());
    }
}
