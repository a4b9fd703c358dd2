"""A shop behind FastAPI: an order and the job that ships it are stored in one transaction of SQLAlchemy's."""
