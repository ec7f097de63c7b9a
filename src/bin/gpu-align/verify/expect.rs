//! `--expect`: the cards that a script was written for.

use std::str::FromStr;

use crate::inside::scene::Scene;

/// What CUDA has to enumerate, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// UUIDs, or their beginnings.
    Uuids(Vec<String>),
    /// nvidia-smi's indices on the host.
    Ranks(Vec<usize>),
}

impl FromStr for Expected {
    type Err = String;

    fn from_str(text: &str) -> Result<Expected, String> {
        if let Some(ranks) = text.strip_prefix("rank=") {
            let ranks: Result<Vec<usize>, _> = ranks.split(',').map(str::parse).collect();
            return ranks
                .map(Expected::Ranks)
                .map_err(|_| "write the cards' indices on the host, like rank=3,1".to_owned());
        }
        let uuids: Vec<String> = text.split(',').map(str::to_owned).collect();
        // The prefix alone would be every card's.
        let named = |uuid: &String| {
            (uuid.starts_with("GPU-") || uuid.starts_with("MIG-")) && uuid.len() > "GPU-".len()
        };
        match uuids.iter().all(named) {
            true => Ok(Expected::Uuids(uuids)),
            false => Err("write UUIDs, like GPU-8521313e, or rank=3,1".to_owned()),
        }
    }
}

impl Expected {
    /// `Ok`: they are these; `Err`: what CUDA enumerates instead.
    pub fn compare(
        &self,
        scene: &Scene,
        devices: &[gpu_align::cuda::CudaDevice],
    ) -> Result<(), String> {
        let (same, there): (bool, Vec<String>) = match self {
            Expected::Uuids(wanted) => {
                let there: Vec<String> = devices.iter().map(|d| d.uuid.to_string()).collect();
                let begins = |(there, wanted): (&String, &String)| {
                    there.to_ascii_lowercase().starts_with(&wanted.to_ascii_lowercase())
                };
                let same = there.len() == wanted.len() && there.iter().zip(wanted).all(begins);
                (same, there)
            }
            Expected::Ranks(wanted) => {
                let rank = |d: &gpu_align::cuda::CudaDevice| scene.device_of(d).map(|d| d.card);
                let there: Vec<Option<usize>> = devices.iter().map(rank).collect();
                let same = there.iter().copied().eq(wanted.iter().copied().map(Some));
                let text = |rank: &Option<usize>| rank.map_or("?".to_owned(), |r| r.to_string());
                (same, there.iter().map(text).collect())
            }
        };
        let kind = match self {
            Expected::Uuids(_) => "",
            Expected::Ranks(_) => "rank=",
        };
        match (same, there.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err("no device".to_owned()),
            (false, false) => Err(format!("{kind}{}", there.join(","))),
        }
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Expected::Uuids(uuids) => f.write_str(&uuids.join(",")),
            Expected::Ranks(ranks) => {
                let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
                write!(f, "rank={}", ranks.join(","))
            }
        }
    }
}
