from __future__ import annotations

from django.urls import path

from examples.django_app.shop import views

urlpatterns = [
    path("orders", views.place_order),
    path("orders/<str:order_id>", views.show_order),
]
