"""Flower ServerApp: configuration, data and model, then the method's rounds, then the results."""

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedadb_app.data.clients import image_schema, partition_of, server_dataset
from fedadb_app.flower_internals import call_on_exit
from fedadb_app.guarded_grid import Allowance, guarded
from fedadb_app.local_training import choose_device
from fedadb_app.models.classifier import ModelSpec
from fedadb_app.models.pretrained import load_weights
from fedadb_app.process import keep_freed_memory
from fedadb_app.runs.checkpoint import checkpoint_to_resume
from fedadb_app.runs.model_file import ModelFile, write_model_file
from fedadb_app.runs.summary import in_words, read_summary
from fedadb_app.runs.writer import RunFolder
from fedadb_app.wire_arrays import to_arrays
from strategies.federated import FederatedStrategy
from strategies.fit import fitting_model, refuse_misfit
from strategies.outcome import EarlyStop
from strategies.registry import read_run_config
from strategies.roster import Roster
from strategies.server_run import ServerRun

logger = logging.getLogger("flwr.fedadb")

app = ServerApp()
keep_freed_memory()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation from the checked configuration to the finished results folder."""
    config, method, params = read_run_config(context.run_config)
    device = choose_device(config.device)
    refuse_misfit(config, method)
    checkpoint = checkpoint_to_resume(config, params)
    with RunFolder.create(config, context.run_id, checkpoint) as folder:
        call_on_exit(folder.stop)  # `flwr stop` ends the process without telling this thread
        logger.info("results: %s", folder.path)
        folder.write_config(config, params.model_dump(by_alias=True))
        dataset, schema = server_dataset(config), image_schema(config)
        if dataset:
            folder.identify(data=dataset.digest)
        report = None if dataset is None else dataset.report
        write_model_file(folder.path, ModelFile.of(config, schema, report))
        model = fitting_model(config, method, schema, dataset)
        if config.weights:
            folder.identify(weights=load_weights(model, Path(config.weights).expanduser()))
        model.to(device)
        grid = guarded(grid, Allowance.of(model.state_dict(), config.max_reply_bytes))
        roster = Roster(config)
        roster.gather(grid)
        partition = None
        if dataset and not config.own_data:
            partition = partition_of(config, roster.num_clients)
            folder.write_partition(partition, config, dataset)
        spec = ModelSpec.of(config, schema)
        logger.info(
            "%s on %s (%d clients), %s, which sees images of %dx%d, device=%s",
            method.title,
            config.dataset,
            roster.num_clients,
            spec.architecture,
            *spec.seen_sides,
            device,
        )
        run = ServerRun(config, method, params, model, schema, dataset, partition, folder)
        strategy = FederatedStrategy(run, roster)
        if checkpoint is not None:
            strategy.resume(checkpoint)
        try:
            strategy.start(
                grid,
                to_arrays(strategy.global_model),
                num_rounds=config.num_server_rounds - folder.finished_rounds,
                timeout=config.round_timeout,
                evaluate_fn=strategy.evaluate_round,
            )
        except EarlyStop as stop:
            folder.ended_early = str(stop)
            logger.info("%s", stop)
        finally:
            for name, content in strategy.kept().items():
                folder.write_tensors(name, content)
            strategy.outcome.write()
        logger.info("%s", in_words(read_summary(folder.path)))
    logger.info("finished; results: %s", folder.path)
