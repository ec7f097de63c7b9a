//! CUDA's own list, through whatever `libcuda.so.1` the loader finds. Only ever
//! called in a child: `cuInit` reads the environment once and for all, starts
//! threads, opens device files and can hang.

use std::ffi::{CStr, c_char, c_int, c_uint};

use gpu_align::cuda::{Answer, CallError, CudaDevice};
use libloading::{Library, Symbol};

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
type Device = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Octets = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type Memory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type Name = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// Starts CUDA and lists what it enumerates.
pub fn enumerate() -> Answer {
    let mut answer = Answer::default();
    // SAFETY: runs the constructors of the library that every CUDA program of
    // this node loads.
    match unsafe { Library::new("libcuda.so.1") } {
        Ok(library) => {
            answer.library = loaded();
            answer.error = list(&Cuda(library), &mut answer).err();
        }
        Err(why) => {
            // The loader's own words begin with the file's name, too.
            let why = why.to_string();
            let why = why.strip_prefix("libcuda.so.1: ").unwrap_or(&why);
            answer.error = Some(missing("libcuda.so.1", &format!("cannot be loaded ({why})")));
        }
    }
    answer
}

fn missing(call: &str, name: &str) -> CallError {
    CallError { call: call.to_owned(), code: None, name: name.to_owned() }
}

/// The file behind the loaded library.
fn loaded() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.contains("/libcuda.so"))?;
    Some(line[line.find('/')?..].to_owned())
}

struct Cuda(Library);

impl Cuda {
    /// # Safety
    ///
    /// `F` is the type that cuda.h gives the function of this name.
    unsafe fn function<F>(&self, name: &str) -> Result<Symbol<'_, F>, CallError> {
        // SAFETY: the caller vouches for the type.
        unsafe { self.0.get(name.as_bytes()) }
            .map_err(|_| missing(name, "libcuda.so.1 lacks the function"))
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), CallError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the type is cuda.h's; the API gives a static string or null.
        let name = unsafe {
            if let Ok(name) = self.function::<Name>("cuGetErrorName") {
                name(code, &raw mut text);
            }
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(CallError { call: call.to_owned(), code: Some(code), name: name.unwrap_or_default() })
    }

    fn version(&self) -> Option<c_int> {
        let mut version = 0;
        // SAFETY: the type is cuda.h's, the out pointer valid.
        let code = unsafe { self.function::<Number>("cuDriverGetVersion").ok()?(&raw mut version) };
        (code == 0).then_some(version)
    }

    fn count(&self) -> Result<c_int, CallError> {
        let mut count = 0;
        // SAFETY: the types are cuda.h's, the out pointer valid.
        unsafe {
            self.check("cuInit", self.function::<Init>("cuInit")?(0))?;
            let get = self.function::<Number>("cuDeviceGetCount")?;
            self.check("cuDeviceGetCount", get(&raw mut count))?;
        }
        Ok(count)
    }

    fn device(&self, index: c_int) -> Result<CudaDevice, CallError> {
        let mut device = 0;
        let mut memory = 0;
        // SAFETY: the types are cuda.h's, the out pointers valid.
        unsafe {
            let get = self.function::<Device>("cuDeviceGet")?;
            self.check("cuDeviceGet", get(&raw mut device, index))?;
            let total = self.function::<Memory>("cuDeviceTotalMem_v2")?;
            self.check("cuDeviceTotalMem_v2", total(&raw mut memory, device))?;
        }
        let nonsense = |what: &str| missing(what, "the answer makes no sense");
        Ok(CudaDevice {
            uuid: self.uuid(device)?.parse().map_err(|_| nonsense("cuDeviceGetUuid"))?,
            pci: self
                .text("cuDeviceGetPCIBusId", device)?
                .parse()
                .map_err(|_| nonsense("cuDeviceGetPCIBusId"))?,
            name: self.text("cuDeviceGetName", device)?,
            memory: memory as u64,
        })
    }

    /// The second version gives a slice its own UUID, the first always gives
    /// the card's: where they differ, it is a slice.
    fn uuid(&self, device: c_int) -> Result<String, CallError> {
        let (mut card, mut own) = ([0; 16], [0; 16]);
        // SAFETY: the types are cuda.h's, the out pointers valid.
        unsafe {
            let first = self.function::<Octets>("cuDeviceGetUuid")?;
            self.check("cuDeviceGetUuid", first(&raw mut card, device))?;
            match self.function::<Octets>("cuDeviceGetUuid_v2") {
                Ok(second) => self.check("cuDeviceGetUuid_v2", second(&raw mut own, device))?,
                Err(_) => own = card,
            }
        }
        let kind = if own == card { "GPU" } else { "MIG" };
        let hex: String = own.iter().map(|octet| format!("{octet:02x}")).collect();
        let groups = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        Ok(format!("{kind}-{}", groups.join("-")))
    }

    fn text(&self, call: &str, device: c_int) -> Result<String, CallError> {
        let mut buffer = [0 as c_char; 128];
        // SAFETY: both functions that are asked for here write at most as many
        // bytes as they are told, NUL included; the last byte stays NUL.
        unsafe {
            let get = self.function::<Text>(call)?;
            self.check(call, get(buffer.as_mut_ptr(), buffer.len() as c_int - 1, device))?;
            Ok(CStr::from_ptr(buffer.as_ptr()).to_string_lossy().into_owned())
        }
    }
}

fn list(cuda: &Cuda, answer: &mut Answer) -> Result<(), CallError> {
    answer.version = cuda.version();
    for index in 0..cuda.count()? {
        answer.devices.push(cuda.device(index)?);
    }
    Ok(())
}
