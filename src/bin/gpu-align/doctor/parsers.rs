//! Python programs that read CUDA_VISIBLE_DEVICES themselves, by version, and
//! builds for another CUDA than the driver's.
//!
//! A program that expects numbers is warned of where cards are named by UUID, and
//! noted before a site selects that form.

use gpu_align::cuda::visible::Remark;

use super::findings::{Finding, Level, finding};
use super::python::{Package, numbers};
use super::{Patient, cuda_version};
use crate::inside::scene::VISIBLE;

/// A program that expects numbers, in the versions from the first on and before
/// the second.
struct Parser {
    name: &'static str,
    versions: [(u32, u32); 2],
    what: &'static str,
}

const fn parser(
    name: &'static str,
    from: (u32, u32),
    fixed: (u32, u32),
    what: &'static str,
) -> Parser {
    Parser { name, versions: [from, fixed], what }
}

const FIRST: (u32, u32) = (0, 0);
const NEVER: (u32, u32) = (u32::MAX, 0);
const FAILS: &str = "fails on UUIDs in CUDA_VISIBLE_DEVICES";
const WRAPPED: &str = "has wrappers and scripts that fail on UUIDs in CUDA_VISIBLE_DEVICES";

const INTEGER_PARSERS: [Parser; 11] = [
    parser("torch", FIRST, (2, 0), "counts 0 devices when they are named by UUID"),
    parser("vllm", FIRST, (0, 24), FAILS),
    parser("ray", FIRST, (1, 0), FAILS),
    parser("ray", (2, 8), (2, 10), FAILS),
    parser("ray_lightning", FIRST, NEVER, FAILS),
    parser(
        "deepspeed",
        FIRST,
        NEVER,
        "has a launcher that fails on UUIDs; scripts under srun do not use it",
    ),
    parser("dask_cuda", FIRST, (0, 17), FAILS),
    parser("openmm", FIRST, NEVER, WRAPPED),
    parser("openmmtools", FIRST, NEVER, WRAPPED),
    parser("meld", FIRST, NEVER, FAILS),
    parser("gprmax", FIRST, NEVER, FAILS),
];

const ADVICE: &str = "ask for numbers with --gpu-align=ids=index, or update it";

pub fn findings(patient: &Patient) -> Vec<Finding> {
    let list = patient.scene.env.get(VISIBLE).unwrap_or_default();
    let by_uuid = list.starts_with("GPU-") || list.starts_with("MIG-");
    let level = if by_uuid { Level::Warning } else { Level::Note };
    let why = if by_uuid { "CUDA_VISIBLE_DEVICES names cards by UUID here" } else { "" };
    let short = |remark: &Remark| matches!(remark, Remark::ShortUuid { .. });
    let shortened = patient.scene.reading().remarks.iter().any(short);
    let mut all = Vec::new();
    for snippet in &patient.snippets {
        let what = format!(
            "{}:{} calls int() on the entries of CUDA_VISIBLE_DEVICES",
            snippet.file, snippet.line
        );
        let todo = "count the entries instead, or ask for numbers with --gpu-align=ids=index";
        all.push(finding(level, "python", what, why, todo));
    }
    for package in patient.python.iter().flat_map(|python| &python.packages) {
        let Package { name, version, .. } = package;
        let of = |parser: &&Parser| {
            let [from, fixed] = parser.versions;
            parser.name == name && (from..fixed).contains(&numbers(version))
        };
        if let Some(parser) = INTEGER_PARSERS.iter().find(of) {
            let what = format!("{name} {version} {}", parser.what);
            all.push(finding(level, "python", what, why, ADVICE));
        } else if name == "vllm" && shortened {
            all.push(finding(
                Level::Warning,
                "python",
                format!("{name} {version} fails on shortened UUIDs"),
                "CUDA_VISIBLE_DEVICES names a card by the beginning of its UUID here",
                "write UUIDs whole, as srun --gpu-align does",
            ));
        } else if name == "jax" {
            all.push(finding(
                Level::Note,
                "python",
                format!(
                    "{name} {version} reads UUIDs; code that calls int() on every entry of \
                     CUDA_VISIBLE_DEVICES, as some use with it, does not"
                ),
                "",
                "look for int() beside CUDA_VISIBLE_DEVICES in your code, or ask for numbers with \
                 --gpu-align=ids=index",
            ));
        }
        all.extend(newer_than_the_driver(package, patient));
    }
    all
}

fn newer_than_the_driver(package: &Package, patient: &Patient) -> Option<Finding> {
    let built = package.cuda.as_deref()?;
    if built == "none" {
        return Some(finding(
            Level::Warning,
            "python",
            format!("{} {} was built without CUDA", package.name, package.version),
            "it uses no card, whatever is visible",
            "install its CUDA build",
        ));
    }
    let offered = cuda_version(&patient.scene)?;
    let needs = numbers(built).0;
    (needs > offered.0 as u32).then(|| {
        finding(
            Level::Wrong,
            "python",
            format!(
                "{} {} was built for CUDA {built} and the driver offers {}.{}",
                package.name, package.version, offered.0, offered.1
            ),
            "it sees no card with this driver",
            "install a build for the driver's CUDA, or ask for a newer driver",
        )
    })
}
