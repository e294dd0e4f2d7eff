"""An app over a FakeGenerator, and a client of it that runs no lifespan."""

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.core.config import ServerConfig
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator


@pytest.fixture
def generator() -> FakeGenerator:
    return FakeGenerator()


@pytest.fixture
def service(generator: FakeGenerator) -> FakeService:
    return FakeService(generator, names=("fake", "fake-alias"))


@pytest.fixture
def app(service: FakeService) -> FastAPI:
    return create_app(dict.fromkeys(service.names, service), ServerConfig())


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app)
