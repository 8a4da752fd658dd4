"""Builds the native kernels (src/native) into the package, if there is a compiler; the rest is in pyproject.toml.

They have a plain C interface and know nothing of Python, so the library is one file for every version of it. Its
heart, level.cpp, is compiled once for each level of processor; which one runs is decided when it is loaded.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

NATIVE = Path("src/native")
SOURCES = ["api.cpp", "cpu.cpp", "pool.cpp"]
FLAGS = ["-std=c++17", "-O3", "-g0", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-fvisibility=hidden"]
# Vectors as arguments stay inside one level; and the compiler mistrusts its own header of AVX-512.
FLAGS += ["-pthread", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-ignored-attributes", "-Wno-maybe-uninitialized"]
SANITIZE = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]

AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"]
TILES = ["-mavx512bf16", "-DTRELLIS_AMX"]
LEVELS: dict[str, list[str]] = {"portable": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS["avx2"] = ["-mavx2", "-mfma"]
    LEVELS["avx512"] = AVX512
    LEVELS["avx512_bf16"] = [*AVX512, "-mavx512bf16"]
    LEVELS["amx"] = [*AVX512, *TILES, "-mamx-tile", "-mamx-bf16"]
    LEVELS["amx_emulated"] = [*AVX512, *TILES, "-DTRELLIS_EMULATE"]


class BuildKernels(build_ext):
    """Compiles one source several times, and lets the install go on without it."""

    def get_ext_filename(self, fullname: str) -> str:
        """No Python in the name: there is none in the library."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None of Python's: the interface says itself what is public."""
        return []

    def build_extension(self, ext: Extension) -> None:
        """Compile and link; a failure is said and is no error."""
        output = Path(self.get_ext_fullpath(ext.name))
        output.unlink(missing_ok=True)  # rather none than one of older sources
        try:
            self._compile(output)
        except Exception as error:
            print(f"trellis: the native kernels were not built, PyTorch will do their work ({error})", file=sys.stderr)

    def _compile(self, output: Path) -> None:
        flags = FLAGS + (SANITIZE if os.environ.get("TRELLIS_SANITIZE") else [])
        build = Path(self.build_temp)
        objects = self.compiler.compile(
            [str(NATIVE / name) for name in SOURCES], output_dir=str(build), extra_postargs=flags
        )
        for level, instructions in LEVELS.items():
            objects += self._compile_level(level, [*flags, *instructions], build / level)
        link = ["-pthread", *(["-fsanitize=address,undefined"] if os.environ.get("TRELLIS_SANITIZE") else [])]
        output.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, str(output), extra_postargs=link, target_lang="c++")

    def _compile_level(self, level: str, flags: list[str], build: Path) -> list[str]:
        """A level that is newer than the compiler is left out; the portable one must do."""
        try:
            return self.compiler.compile(
                [str(NATIVE / "level.cpp")],
                output_dir=str(build),
                extra_postargs=[*flags, f"-DTRELLIS_LEVEL=level_{level}"],
            )
        except CompileError:
            if level == "portable":
                raise
            print(f"trellis: this compiler does not know {level}", file=sys.stderr)
            return []


class AnyPython(bdist_wheel):
    """A wheel for every version of Python; for this platform alone if it holds the library, and else for all."""

    def get_tag(self) -> tuple[str, str, str]:
        """The tag in the wheel's name."""
        built = any(Path(self.bdist_dir).rglob("_kernels.so"))
        return "py3", "none", super().get_tag()[2] if built else "any"


setup(
    ext_modules=[
        Extension(
            "trellis._kernels",
            sources=[str(NATIVE / name) for name in [*SOURCES, "level.cpp"]],
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
)
