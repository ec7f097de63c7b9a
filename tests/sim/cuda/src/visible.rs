//! CUDA_VISIBLE_DEVICES as the driver reads it.
//!
//! Fields between commas, taken in order up to the first that names nothing;
//! then a device named twice makes the whole list void. The rows of
//! `tests/visible.rs` say which of this was measured on a real card.

use crate::enumerate::{Entry, Reachable};
use crate::error::CudaError;

/// The devices that the list names; `numbered` is what its indices count.
pub(crate) fn filter(
    list: &str,
    numbered: &[Entry],
    cards: &[Reachable],
) -> Result<Vec<Entry>, CudaError> {
    let by_name = Kind::of(list);
    let mut named: Vec<Entry> = Vec::new();
    for field in list.split(',') {
        if Kind::of(field) != by_name {
            break;
        }
        let device = match by_name {
            Kind::Index => index(field).and_then(|i| numbered.get(i).cloned()),
            Kind::Card => only(cards.iter().filter(|c| begins(&c.card.uuid, field)))
                .and_then(Reachable::device),
            Kind::Slice => slice(cards, field),
        };
        let Some(device) = device else { break };
        if named.contains(&device) {
            return Err(CudaError::InvalidDevice);
        }
        named.push(device);
    }
    Ok(named)
}

/// What a field names its device by. The first field decides for the list.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Index,
    Card,
    Slice,
}

impl Kind {
    fn of(text: &str) -> Kind {
        if begins(text, "GPU-") {
            Kind::Card
        } else if begins(text, "MIG-") {
            Kind::Slice
        } else {
            Kind::Index
        }
    }
}

/// As strtol reads it: blanks, a sign, the leading digits; what follows is ignored.
fn index(field: &str) -> Option<usize> {
    let field = field.trim_start_matches(|c: char| c.is_ascii_whitespace());
    let unsigned = field.strip_prefix('+').unwrap_or(field);
    let end = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
    unsigned[..end].parse().ok()
}

/// A slice by the beginning of its UUID, or by its card's and its instances'
/// ids: `MIG-GPU-<uuid>/<gi>/<ci>`, the spelling of drivers before R470.
fn slice(cards: &[Reachable], field: &str) -> Option<Entry> {
    let every = cards.iter().flat_map(|c| c.slices.iter().map(move |s| (c, s)));
    let matching = every.filter(|(c, s)| {
        let old = format!("MIG-{}/{}/{}", c.card.uuid, s.gi, s.ci);
        begins(&s.uuid, field) || old.eq_ignore_ascii_case(field)
    });
    only(matching).map(|(card, slice)| card.slice(slice))
}

fn begins(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// The one item, if there is exactly one: an ambiguous prefix names nothing.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}
