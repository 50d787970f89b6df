"""`nearhit distill` trains a light model on the answers of a large one."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.adapters.onnx.model_files import default_model_dir
from gateway.cli.output import FAULT, GOOD, CommandFailed, WrongUsage, print_result
from gateway.cli.parser import Command, build, integer_between, number_between
from gateway.cli.progress import bar_console, step_reporter
from gateway.features.distillation.data import DataInvalid
from gateway.features.distillation.options import DistillOptions, OutputDir, TrainingOptions, TuningOptions
from gateway.features.distillation.repository import NAME
from gateway.features.distillation.run import distil
from gateway.model_build.environment import FetchFailed
from gateway.model_build.fetch import WEIGHTS, build_environment, download_weights

BUILD_ENV = Path(".venv-build")
SHARE = number_between(0.0, 1.0, below=True)
COUNT = integer_between(1, 10_000)
REFUSED = "nothing was written: the newest version is better; --force writes this one all the same"
LAYERS = 6  # of all-MiniLM-L6


def register(command: Command) -> None:
    command.define(
        run,
        "--prepare --build-env .venv-build",
        "answers.jsonl --name intents",
        "train.csv --held-out test.csv --large --name intents --repository models",
        about="DATA contains texts with the labels or answers that a large model gave them: a .csv, a .jsonl, or a "
        "file of `nearhit cache export`. The command trains a student in a separate environment, quantises it, and "
        "compares it with its teacher on held-out rows. It then writes the next version of a classifier for Triton's "
        "python backend. An interrupted run resumes after its last epoch.",
        fault="the data has faults (each with its line), no build environment exists, or the newest version is better",
    )
    add = command.add_argument
    add("data", metavar="DATA", type=Path, nargs="?", help=".csv or .jsonl: texts with their labels")
    add("--name", default="student", help="name of the model; default: %(default)s")
    add(
        "--repository",
        metavar="DIR",
        type=Path,
        default=Path("build/models"),
        help="Triton model repository; default: %(default)s",
    )
    add("--work", metavar="DIR", type=Path, help="checkpoints and reports; default: build/distill/NAME")
    add("--held-out", metavar="FILE", type=Path, help="rows for the comparison; default: --hold-out of DATA")
    add("--hold-out", metavar="X", type=SHARE, default=0.2, help="share of DATA to hold out; default: %(default)s")
    add(
        "--large", action="store_true", help="first train a large classifier (all-MiniLM) on the labels, as the teacher"
    )
    add(
        "--agreement",
        metavar="X",
        type=SHARE,
        default=0.95,
        help="agreement with the teacher when the student is sure; 0: it always answers",
    )
    add("--alpha", metavar="X", type=SHARE, default=0.3, help="weight of the labels in the loss; default: %(default)s")
    add(
        "--temperature",
        metavar="T",
        type=number_between(1e-6, 1e6),
        default=2.0,
        help="of the soft labels; default: %(default)s",
    )
    add("--epochs", metavar="N", type=COUNT, default=8, help="of the student; default: %(default)s")
    add(
        "--teacher-epochs", metavar="N", type=integer_between(0, 10_000), default=4,
        help="epochs that train the layers of --large; 0: only its head; default: %(default)s",
    )  # fmt: skip
    add(
        "--teacher-layers",
        metavar="N",
        type=integer_between(1, LAYERS),
        default=LAYERS,
        help="lowest layers that the teacher has; default: all %(default)s",
    )
    add(
        "--teacher-frozen",
        metavar="N",
        type=integer_between(0, 10_000),
        default=2,
        help="lowest layers of the teacher that stay frozen; default: %(default)s",
    )
    add(
        "--precision",
        choices=("int8", "fp16", "fp32"),
        default="int8",
        help="precision of the graph; default: %(default)s",
    )
    add("--tensorrt", action="store_true", help="also write NAME-graph, for Triton's onnxruntime backend on a GPU")
    add("--prune", metavar="X", type=SHARE, default=0.0, help="share of the hidden units to remove; default: none")
    add("--prune-epochs", metavar="N", type=COUNT, default=5, help="epochs after pruning; default: %(default)s")
    add("--width", metavar="N", type=COUNT, default=256, help="dimensions of a token's vector; default: %(default)s")
    add("--hidden", metavar="N", type=COUNT, default=256, help="width of the hidden layer; default: %(default)s")
    add(
        "--tokens",
        choices=("all", "used"),
        default="all",
        help="tokens with a vector: all, or those in DATA, which makes a small file; default: %(default)s",
    )
    add("--seed", metavar="N", type=int, default=0, help="random seed; default: %(default)s")
    add("--force", action="store_true", help="write the version even if the newest one is better")
    add(
        "--against",
        metavar="N",
        type=integer_between(1, 10**9),
        help="version that the new one must not be worse than; default: the newest",
    )
    add("--build-env", metavar="DIR", type=Path, default=BUILD_ENV, help="environment with torch; default: %(default)s")
    add("--prepare", action="store_true", help="install the build environment (1.7 GB), and stop")
    add("--model-dir", type=Path, default=None, help="folder of the embedding models")


def run(arguments: argparse.Namespace) -> int:
    console = bar_console()
    with step_reporter(quiet=arguments.json, console=console) as step:
        if arguments.prepare:
            folder = arguments.build_env.absolute()
            download_weights(build_environment(folder, step), folder / WEIGHTS, step)
            return print_result(
                arguments, {"build_env": str(arguments.build_env)}, f"torch is in {arguments.build_env}"
            )
        if arguments.data is None:
            raise WrongUsage("no training data: expected DATA, a .csv or .jsonl file")
        if NAME.fullmatch(arguments.name) is None:
            raise WrongUsage(
                f"--name {arguments.name!r} is not a model name: expected letters, digits, '_', '.' and '-'"
            )
        try:
            made = distil(distill_options(arguments), step)
        except DataInvalid as fault:
            raise CommandFailed(str(fault)) from None
        except FetchFailed as fault:
            if "build environment" not in str(fault):
                raise
            raise CommandFailed(
                f"{fault}: `nearhit distill --prepare --build-env {arguments.build_env}` creates it"
            ) from None
    document = {"entry": str(made.entry) if made.entry else None, "large": str(made.large) if made.large else None}
    place = f"the model is in {made.entry}" if made.entry else REFUSED
    print_result(arguments, document | {"report": made.report, "policy": made.policy}, f"{made.text}\n{place}")
    return GOOD if made.entry else FAULT


def output_dir(arguments: argparse.Namespace) -> OutputDir:
    work = arguments.work or Path("build/distill") / arguments.name
    models = arguments.model_dir or default_model_dir()
    return build(OutputDir, arguments, work=work, models=models, quiet=arguments.json)


def distill_options(arguments: argparse.Namespace) -> DistillOptions:
    if arguments.tensorrt and arguments.precision == "int8":
        raise WrongUsage("TensorRT cannot run an int8 graph of onnxruntime: expected --precision fp16 or fp32")
    if arguments.teacher_epochs and arguments.teacher_frozen >= arguments.teacher_layers:
        raise WrongUsage(
            f"the teacher has {arguments.teacher_layers} layers: to freeze all of them, use --teacher-epochs 0"
        )
    return build(
        DistillOptions,
        arguments,
        output=output_dir(arguments),
        training=build(TrainingOptions, arguments),
        tuning=build(
            TuningOptions,
            arguments,
            epochs=arguments.teacher_epochs,
            layers=arguments.teacher_layers,
            frozen=arguments.teacher_frozen,
        ),
    )
