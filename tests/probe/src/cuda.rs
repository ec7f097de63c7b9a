//! CUDA's own list, through whatever `libcuda.so.1` the loader finds.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr;

use serde_json::{Value, json};

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
type Device = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Uuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type Memory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// A call that did not succeed; no code where the library or the function is missing.
struct Failure {
    call: &'static str,
    code: Option<c_int>,
    name: String,
}

/// The devices in CUDA's order, and the call that ended the list if one did.
pub fn enumerate() -> (Vec<Value>, Value) {
    let mut devices = Vec::new();
    match Library::open().and_then(|library| library.devices(&mut devices)) {
        Ok(()) => (devices, Value::Null),
        Err(Failure { call, code, name }) => {
            (devices, json!({"call": call, "code": code, "name": name}))
        }
    }
}

/// The driver library; never closed, as programs never close it.
struct Library(*mut c_void);

impl Library {
    fn open() -> Result<Library, Failure> {
        // SAFETY: the name is a C string; loading runs the constructors of a
        // library that every CUDA program of this node loads.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return Err(Failure {
                call: "dlopen",
                code: None,
                name: "libcuda.so.1 cannot be loaded".into(),
            });
        }
        Ok(Library(handle))
    }

    /// # Safety
    ///
    /// `F` is the type of the function that the driver API gives this name.
    unsafe fn function<F: Copy>(&self, name: &'static CStr) -> Option<F> {
        assert_eq!(mem::size_of::<F>(), mem::size_of::<*mut c_void>());
        // SAFETY: the handle is an open library, the name a C string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: a function pointer of the type that the caller vouches for.
        (!symbol.is_null()).then(|| unsafe { mem::transmute_copy(&symbol) })
    }

    /// # Safety
    ///
    /// As for [`Library::function`].
    unsafe fn needed<F: Copy>(&self, name: &'static CStr) -> Result<F, Failure> {
        // SAFETY: the caller vouches for the type.
        unsafe { self.function(name) }.ok_or_else(|| Failure {
            call: name.to_str().unwrap_or_default(),
            code: None,
            name: "libcuda.so.1 lacks the function".into(),
        })
    }

    fn devices(&self, list: &mut Vec<Value>) -> Result<(), Failure> {
        // SAFETY: the types are those of cuda.h.
        let (init, count, device) = unsafe {
            (
                self.needed::<Init>(c"cuInit")?,
                self.needed::<Count>(c"cuDeviceGetCount")?,
                self.needed::<Device>(c"cuDeviceGet")?,
            )
        };
        // SAFETY: the API's functions, called as cuda.h says, with valid out pointers.
        unsafe {
            let mut devices = 0;
            self.check("cuInit", init(0))?;
            self.check("cuDeviceGetCount", count(&mut devices))?;
            for index in 0..devices {
                let mut handle = 0;
                self.check("cuDeviceGet", device(&mut handle, index))?;
                list.push(json!({
                    "index": index,
                    "uuid": self.uuid(handle)?,
                    "pci": self.text(c"cuDeviceGetPCIBusId", handle)?.to_lowercase(),
                    "name": self.text(c"cuDeviceGetName", handle)?,
                    "memory": self.memory(handle)?,
                }));
            }
        }
        Ok(())
    }

    /// The second version gives a slice its own UUID, the first always gives
    /// the card's: where they differ, it is a slice.
    fn uuid(&self, device: c_int) -> Result<String, Failure> {
        let (mut card, mut own) = ([0; 16], [0; 16]);
        // SAFETY: the types are those of cuda.h, the out pointers valid.
        unsafe {
            let first = self.needed::<Uuid>(c"cuDeviceGetUuid")?;
            self.check("cuDeviceGetUuid", first(&mut card, device))?;
            match self.function::<Uuid>(c"cuDeviceGetUuid_v2") {
                Some(second) => self.check("cuDeviceGetUuid_v2", second(&mut own, device))?,
                None => own = card,
            }
        }
        let kind = if own == card { "GPU" } else { "MIG" };
        let hex: String = own.iter().map(|octet| format!("{octet:02x}")).collect();
        let groups = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        Ok(format!("{kind}-{}", groups.join("-")))
    }

    fn text(&self, call: &'static CStr, device: c_int) -> Result<String, Failure> {
        let mut buffer = [0 as c_char; 128];
        // SAFETY: both functions asked for here write at most as many bytes as
        // they are told, NUL included; the last byte stays NUL in any case.
        unsafe {
            let function = self.needed::<Text>(call)?;
            let room = buffer.len() as c_int - 1;
            let name = call.to_str().unwrap_or_default();
            self.check(name, function(buffer.as_mut_ptr(), room, device))?;
            Ok(CStr::from_ptr(buffer.as_ptr()).to_string_lossy().into_owned())
        }
    }

    fn memory(&self, device: c_int) -> Result<usize, Failure> {
        let mut bytes = 0;
        // SAFETY: the type is that of cuda.h, the out pointer valid.
        unsafe {
            let function = self.needed::<Memory>(c"cuDeviceTotalMem_v2")?;
            self.check("cuDeviceTotalMem_v2", function(&mut bytes, device))?;
        }
        Ok(bytes)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: the type is that of cuda.h; the API gives a static string or null.
        let name = unsafe {
            if let Some(function) = self.function::<ErrorName>(c"cuGetErrorName") {
                function(code, &mut text);
            }
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(Failure { call, code: Some(code), name: name.unwrap_or_default() })
    }
}
