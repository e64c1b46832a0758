//! Calls of code that users wrote in Python: progress callbacks, draft sources.
//!
//! Before version 3.14, Python ends a thread that asks for the interpreter while the process ends by unwinding its stack (`pthread_exit`). Rust frames are not
//! made for that: a process with a thread in a callback at that moment would abort. As in 3.14, such a thread stays where it is instead, until the process is
//! gone. pyo3 sees to that where Rust asks for the interpreter; this module does where Python code, called from Rust, does so.
//!
//! - **K1** Nothing but the guard lies between the call and the frames that it protects, and the call is declared to unwind, so the guard sees it first.
//!   `black_box` hides that the function is one that was declared elsewhere not to.

use std::hint::black_box;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Keeps a thread that is unwound by others than us.
struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

type Call =
    unsafe extern "C-unwind" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;
type Next = unsafe extern "C-unwind" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// Calls an object.
pub(crate) fn call<'py>(
    callable: &Bound<'py, PyAny>,
    args: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = callable.py();
    let args = args.into_pyobject(py).map_err(Into::into)?;
    // SAFETY: the same function with the same calling convention; only what the compiler expects of it differs.
    let function = unsafe {
        std::mem::transmute::<
            unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject,
            Call,
        >(ffi::PyObject_Call)
    };
    let stay = Stay;
    // SAFETY: attached to the interpreter, by `py`; two live objects, and no keywords.
    let result = unsafe { black_box(function)(callable.as_ptr(), args.as_ptr(), std::ptr::null_mut()) };
    std::mem::forget(stay);
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, result) }
}

/// Calls a method.
pub(crate) fn method<'py>(
    object: &Bound<'py, PyAny>,
    name: &str,
    args: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    call(&object.getattr(name)?, args)
}

/// The next item of an iterator.
pub(crate) fn next<'py>(iterator: &Bound<'py, pyo3::types::PyIterator>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = iterator.py();
    // SAFETY: as in `call`.
    let function = unsafe {
        std::mem::transmute::<unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject, Next>(ffi::PyIter_Next)
    };
    let stay = Stay;
    // SAFETY: attached to the interpreter, by `py`; a live iterator.
    let item = unsafe { black_box(function)(iterator.as_ptr()) };
    std::mem::forget(stay);
    // SAFETY: a new reference or null, at the end or with an exception set.
    let item = unsafe { Bound::from_owned_ptr_or_opt(py, item) };
    match (item, PyErr::take(py)) {
        (_, Some(error)) => Err(error),
        (item, None) => Ok(item),
    }
}

/// Tells a caller how far a load has come, if it wants to know. Gives whether to go on; what the caller raised, or a signal's handler, is in `raised`.
pub(crate) fn progress(
    told: &Option<Py<PyAny>>,
    raised: &std::sync::Mutex<Option<PyErr>>,
    done: usize,
    total: usize,
) -> bool {
    Python::attach(|py| {
        let told = told.as_ref().map_or(Ok(()), |told| call(told.bind(py), (done, total)).map(drop));
        match told.and_then(|()| py.check_signals()) {
            Ok(()) => true,
            Err(exception) => {
                if let Ok(mut raised) = raised.lock() {
                    *raised = Some(exception);
                }
                false
            }
        }
    })
}
