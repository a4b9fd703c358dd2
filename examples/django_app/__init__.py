"""A shop in Django: an order and the job that ships it are stored in one transaction of Django's own."""
