//! Types of Python values that Rust holds as any object. `lcm/_lcm.pyi` is generated from them.

use std::convert::Infallible;
use std::marker::PhantomData;

use pyo3::prelude::*;

/// The Python form of a type.
pub(crate) trait Annotation {
    /// The annotation as in a stub.
    #[cfg_attr(not(feature = "stub"), expect(dead_code, reason = "only the stub has annotations"))]
    const TEXT: &'static str;
}

/// A Python object of an annotated type.
pub(crate) struct Annotated<'py, A>(Bound<'py, PyAny>, PhantomData<A>);

impl<'py, A, T> From<Bound<'py, T>> for Annotated<'py, A> {
    fn from(object: Bound<'py, T>) -> Self {
        Self(object.into_any(), PhantomData)
    }
}

impl<'py, A: Annotation> IntoPyObject<'py> for Annotated<'py, A> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = Infallible;

    #[cfg(feature = "stub")]
    const OUTPUT_TYPE: pyo3::inspect::PyStaticExpr =
        pyo3::inspect::PyStaticExpr::Constant { value: pyo3::inspect::PyStaticConstant::Str(A::TEXT) };

    fn into_pyobject(self, _py: Python<'py>) -> Result<Self::Output, Self::Error> {
        Ok(self.0)
    }
}

macro_rules! annotations {
    ($( $name:ident = $text:literal; )+) => {
        $(
            pub(crate) enum $name {}

            impl Annotation for $name {
                const TEXT: &'static str = $text;
            }
        )+
    };
}

annotations! {
    Desired = "DesiredStatus";
    FrozenMap = "FrozenMap";
    JsonObject = "dict[str, Any]";
    MaybeFrozenMap = "FrozenMap | None";
    Status = "WorkerStatus";
    Texts = "tuple[str, ...]";
    WorkerMatch = "tuple[Literal['id'], Literal['status'], Literal['desired_status']]";
}
