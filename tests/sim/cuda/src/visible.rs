//! CUDA_VISIBLE_DEVICES as the driver reads it.
//!
//! Fields between commas are taken in order up to the first that names
//! nothing; a device named twice before that makes the whole list void. The
//! rows of `tests/visible.rs` say which of this was measured on a real card:
//! most of it is not what a reader of the documentation would guess.

use crate::enumerate::{Entry, Reachable};
use crate::error::CudaError;

/// The devices that the list names; `numbered` is what its indices count.
pub(crate) fn filter(
    list: &str,
    numbered: &[Entry],
    cards: &[Reachable],
) -> Result<Vec<Entry>, CudaError> {
    let by_uuid = uuid_part(list).is_some();
    let mut named: Vec<Entry> = Vec::new();
    for field in list.split(',') {
        let device = match uuid_part(field) {
            Some(part) if by_uuid => by_name(cards, field, part),
            None if !by_uuid => index(field).and_then(|i| numbered.get(i).cloned()),
            // The first field decides how the list names devices.
            _ => None,
        };
        let Some(device) = device else { break };
        if named.contains(&device) {
            return Err(CudaError::InvalidDevice);
        }
        named.push(device);
    }
    Ok(named)
}

/// What follows `GPU-` or `MIG-`. The driver looks for these in capitals only,
/// and then takes either for either: `MIG-` and a card's UUID name the card.
fn uuid_part(field: &str) -> Option<&str> {
    field.strip_prefix("GPU-").or_else(|| field.strip_prefix("MIG-"))
}

/// The one card or slice whose UUID begins with these digits; an ambiguous
/// beginning names nothing. A slice also goes by its card's and instances' ids,
/// `MIG-GPU-<uuid>/<gi>/<ci>`, the spelling of drivers before R470.
fn by_name(cards: &[Reachable], field: &str, part: &str) -> Option<Entry> {
    let digits = hex_digits(part);
    let is = |uuid: &str| {
        let own = uuid_part(uuid).and_then(hex_digits);
        digits.as_ref().zip(own).is_some_and(|(digits, own)| own.starts_with(digits))
    };
    let whole = cards.iter().filter(|c| is(&c.card.uuid));
    let slices =
        cards.iter().flat_map(|c| c.slices.iter().map(move |s| (c, s))).filter(|(c, s)| {
            let old = format!("MIG-{}/{}/{}", c.card.uuid, s.gi, s.ci);
            is(&s.uuid) || old.eq_ignore_ascii_case(field)
        });
    let mut matching =
        whole.map(Reachable::device).chain(slices.map(|(card, slice)| Some(card.slice(slice))));
    let first = matching.next()?;
    matching.next().is_none().then_some(first).flatten()
}

/// The hexadecimal digits of a UUID or of its beginning, hyphens skipped. After
/// 32 of them anything may follow; before, nothing but digits and hyphens may.
fn hex_digits(part: &str) -> Option<String> {
    const WHOLE: usize = 32;
    let mut digits = String::new();
    for c in part.chars().filter(|&c| c != '-') {
        if digits.len() == WHOLE {
            break;
        }
        digits.push(c.is_ascii_hexdigit().then(|| c.to_ascii_lowercase())?);
    }
    (!part.is_empty()).then_some(digits)
}

/// As C's strtoul reads it, cut to a 32-bit int: blanks, a sign, the leading
/// digits; what follows is ignored, and 4294967296 is 0.
fn index(field: &str) -> Option<usize> {
    let field = field.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, unsigned) = match field.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, field.strip_prefix('+').unwrap_or(field)),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
    if end == 0 {
        return None;
    }
    let number = match unsigned[..end].parse::<u64>() {
        Ok(magnitude) if negative => magnitude.wrapping_neg(),
        Ok(magnitude) => magnitude,
        Err(_) => u64::MAX,
    };
    usize::try_from(number as i32).ok()
}
